import { readdirSync, rmSync, statSync } from 'node:fs'
import { join } from 'node:path'

/** Removes all but the `count` files of a folder that were written last. A folder that does not exist has none. */
export function keepNewest(folder: string, count: number): void {
  const files = namesIn(folder)
  if (files.length <= count) return
  const byAge = files.map(name => ({ path: join(folder, name), writtenMs: writtenMs(join(folder, name)) }))
  byAge.sort((a, b) => b.writtenMs - a.writtenMs)
  for (const { path } of byAge.slice(count)) rmSync(path, { force: true })
}

function namesIn(folder: string): readonly string[] {
  try {
    return readdirSync(folder)
  } catch {
    return []
  }
}

/** Another run may have removed the file. */
function writtenMs(path: string): number {
  return statSync(path, { throwIfNoEntry: false })?.mtimeMs ?? 0
}
