import { readdir, readFile } from 'node:fs/promises'
import { networkNamespace } from '../daemon/instance.ts'

/**
 * Processes of a name in the network namespace of this one, as far as /proc shows them here: a container may see its own
 * processes alone, and who has fewer privileges than a process does not see where that one is.
 */
export async function processesNamed(name: string, proc = '/proc'): Promise<readonly number[]> {
  const here = await networkNamespace(`${proc}/self`)
  const found: number[] = []
  for (const entry of await readdir(proc)) {
    if (!/^\d+$/.test(entry)) continue
    if ((await nameOf(`${proc}/${entry}`)) !== name) continue
    if (here !== undefined && (await networkNamespace(`${proc}/${entry}`)) === here) found.push(Number(entry))
  }
  return found.sort((a, b) => a - b)
}

/** At most 15 bytes of it are kept. Undefined for a process that has ended. */
async function nameOf(folder: string): Promise<string | undefined> {
  try {
    return (await readFile(`${folder}/comm`, 'utf8')).trim()
  } catch {
    return undefined
  }
}
