import type { SourceProblem } from '../source.ts'
import type { Trouble } from './reflector-state.ts'

const KEPT = 'the last known state stays in use; retrying'
const UNKNOWN = 'no Services known yet, retrying'

/**
 * What is wrong, over all resources: what they suffer from together is one problem of the server. Each is said once when
 * it begins, however its words change, and once when it is over.
 */
export class Troubles {
  readonly #server: string
  readonly #say: (problem: SourceProblem) => void
  readonly #isSynced: () => boolean
  readonly #now = new Map<string, Trouble>()
  /** Places that were reported and are not well again. */
  readonly #said = new Set<string>()

  /** `isSynced`: everything has been read once, and stays in use. */
  constructor(server: string, say: (problem: SourceProblem) => void, isSynced: () => boolean) {
    this.#server = server
    this.#isSynced = isSynced
    this.#say = say
  }

  /** The worst of it in one line; undefined when all is well. */
  get text(): string | undefined {
    let first: string | undefined
    for (const [resource, { scope, text }] of this.#now) {
      if (scope === 'server') return `${this.#server}: ${this.#short(text)}`
      if (scope !== 'absent') first ??= `${resource}: ${text}`
    }
    return first
  }

  set(resource: string, trouble: Trouble | undefined): void {
    if (trouble === undefined) this.#now.delete(resource)
    else this.#now.set(resource, trouble)
    if (trouble?.scope === 'server') this.#fail(this.#server, trouble)
    else if (trouble !== undefined) this.#fail(resource, trouble)
    else this.#recover(resource, 'read again')
    if (![...this.#now.values()].some(({ scope }) => scope === 'server'))
      this.#recover(this.#server, 'the API server answers again')
  }

  #fail(location: string, { scope, text }: Trouble): void {
    if (this.#said.has(location)) return
    this.#said.add(location)
    if (scope === 'absent' || scope === 'denied') this.#say({ kind: 'absent', location, text })
    else
      this.#say({
        kind: 'failed',
        location,
        text: this.#short(text),
        meanwhile: this.#isSynced() ? KEPT : UNKNOWN,
      })
  }

  /** Omits the name of the server, which is the location. */
  #short(text: string): string {
    return text.replace(` at ${this.#server}:`, ':')
  }

  #recover(location: string, text: string): void {
    if (this.#said.delete(location)) this.#say({ kind: 'recovered', location, text })
  }
}
