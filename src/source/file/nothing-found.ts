import { basename } from 'node:path'
import { KINDS_READ } from './object-doubts.ts'

/** What was read of a file that has no object for this node. */
interface ReadFile {
  readonly path: string
  readonly otherKinds: ReadonlySet<string>
}

const NAMES_MAX = 5

/** Says why there is no object in a file or folder. */
export function nothingFound(files: readonly ReadFile[], skipped: readonly string[]): string {
  if (files.length === 0) {
    const others = skipped.length === 0 ? '' : `; skipped: ${namesOf(skipped)}`
    return `nothing found: the folder has no *.yaml, *.yml or *.json file${others}`
  }
  const kinds = [...new Set(files.flatMap(({ otherKinds }) => [...otherKinds]))]
  const read = `; files read: ${namesOf(files.map(({ path }) => basename(path)))}`
  const others = kinds.length === 0 ? '' : `; other objects: ${namesOf(kinds)}`
  return `nothing found: no ${KINDS_READ} for this node${read}${others}`
}

function namesOf(names: readonly string[]): string {
  const more = names.length - NAMES_MAX
  return `${names.slice(0, NAMES_MAX).join(', ')}${more > 0 ? ` and ${more} more` : ''}`
}
