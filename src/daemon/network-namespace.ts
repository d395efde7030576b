import { readlink } from 'node:fs/promises'

/** The network namespace of a process, by its folder in /proc; undefined where it may not be read. */
export async function networkNamespace(folder = '/proc/self'): Promise<string | undefined> {
  try {
    return await readlink(`${folder}/ns/net`)
  } catch {
    return undefined
  }
}
