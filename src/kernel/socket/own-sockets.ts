import { readdirSync, readlinkSync } from 'node:fs'

/** Returns the inodes of this process's open sockets, synchronously. Throws where /proc cannot be read. */
export function ownSockets(): ReadonlySet<number> {
  return socketsOfProcess('self')
}

/** Returns the inodes of a process's open sockets. */
export function socketsOfProcess(process: number | 'self'): ReadonlySet<number> {
  const folder = `/proc/${process}/fd`
  const inodes = new Set<number>()
  for (const name of readdirSync(folder)) {
    const inode = /^socket:\[(\d+)\]$/.exec(targetOf(`${folder}/${name}`))?.[1]
    if (inode !== undefined) inodes.add(Number(inode))
  }
  return inodes
}

/** Returns an empty string for a descriptor that was closed meanwhile, such as that of the directory itself. */
function targetOf(path: string): string {
  try {
    return readlinkSync(path)
  } catch (error) {
    if (error instanceof Error && 'code' in error && error.code === 'ENOENT') return ''
    throw error
  }
}
