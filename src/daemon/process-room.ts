import { readFileSync } from 'node:fs'
import type { ProcessRoom } from '../dataplane/userspace/relay/limits.ts'

/** What this process may take of its machine, at once. */
export function processRoom(): ProcessRoom {
  // 0, or more than any machine has, without a control group that limits it.
  const memoryBytes = process.constrainedMemory()
  return { descriptors: descriptors(), memoryBytes: memoryBytes > 0 ? memoryBytes : undefined }
}

/** Where there is no /proc, nobody knows. */
function descriptors(): number | undefined {
  try {
    const [, most] = /^Max open files\s+(\d+)/m.exec(readFileSync('/proc/self/limits', 'utf8')) ?? []
    return most === undefined ? undefined : Number(most)
  } catch {
    return undefined
  }
}
