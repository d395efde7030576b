import { readdirSync, readlinkSync } from 'node:fs'

/** Inodes of the sockets that this process has open, at once. Throws where /proc cannot be read. */
export function ownSockets(): ReadonlySet<number> {
  return socketsOfProcess('self')
}

/** The same of the process of a number. */
export function socketsOfProcess(process: number | 'self'): ReadonlySet<number> {
  const folder = `/proc/${process}/fd`
  const inodes = new Set<number>()
  for (const name of readdirSync(folder)) {
    const inode = /^socket:\[(\d+)\]$/.exec(targetOf(`${folder}/${name}`))?.[1]
    if (inode !== undefined) inodes.add(Number(inode))
  }
  return inodes
}

/** Empty for a descriptor that is closed by now, such as that of the folder itself. */
function targetOf(path: string): string {
  try {
    return readlinkSync(path)
  } catch (error) {
    if (error instanceof Error && 'code' in error && error.code === 'ENOENT') return ''
    throw error
  }
}
