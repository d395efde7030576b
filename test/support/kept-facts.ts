import { createHash } from 'node:crypto'
import { mkdirSync, readFileSync, renameSync, writeFileSync } from 'node:fs'
import { dirname } from 'node:path'
import { factsOf, type SourceFacts } from './source-facts.ts'

/** Facts of sources by their text, in a file: parsing the whole tree takes longer than any other test of `npm run ok`. */
export class KeptFacts {
  readonly #file: string
  /** What reads the facts; facts that something else has read do not count. */
  readonly #reader: string
  readonly #before: ReadonlyMap<string, SourceFacts>
  readonly #now = new Map<string, SourceFacts>()

  constructor(file: string, reader: string) {
    this.#file = file
    this.#reader = reader
    this.#before = factsIn(file)
  }

  of(text: string, hasJsx = false): SourceFacts {
    const key = createHash('sha256').update(this.#reader).update('\0').update(text).digest('base64')
    const facts = this.#before.get(key) ?? factsOf(text, hasJsx)
    this.#now.set(key, facts)
    return facts
  }

  /** Writes the facts that were asked for, and no others: the file does not grow with the changes of the tree. */
  save(): void {
    mkdirSync(dirname(this.#file), { recursive: true })
    const own = `${this.#file}.${process.pid}`
    writeFileSync(own, JSON.stringify([...this.#now]))
    renameSync(own, this.#file)
  }
}

function factsIn(file: string): ReadonlyMap<string, SourceFacts> {
  try {
    const kept: readonly (readonly [string, SourceFacts])[] = JSON.parse(readFileSync(file, 'utf8'))
    return new Map(kept)
  } catch {
    return new Map()
  }
}
