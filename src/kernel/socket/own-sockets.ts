import { readdirSync, readlinkSync } from 'node:fs'

const FOLDER = '/proc/self/fd'

/** Inodes of the sockets that this process has open, at once. Throws where /proc cannot be read. */
export function ownSockets(): ReadonlySet<number> {
  const inodes = new Set<number>()
  for (const name of readdirSync(FOLDER)) {
    const inode = /^socket:\[(\d+)\]$/.exec(targetOf(name))?.[1]
    if (inode !== undefined) inodes.add(Number(inode))
  }
  return inodes
}

/** Empty for a descriptor that is closed by now, such as that of the folder itself. */
function targetOf(name: string): string {
  try {
    return readlinkSync(`${FOLDER}/${name}`)
  } catch (error) {
    if (error instanceof Error && 'code' in error && error.code === 'ENOENT') return ''
    throw error
  }
}
