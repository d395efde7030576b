import { RESOURCE_EXHAUSTED, RpcError } from '../api/grpc/rpc.ts'
import type { Collection } from './collection.ts'
import type { Entry } from './frames.ts'
import type { RelayState } from './state.ts'

/** The objects that one reader subscribes to by name. Throws if all readers together subscribe to too many. */
export class SubscribedNames {
  readonly #state: Pick<RelayState, 'nameBytes'>
  readonly #names = new Set<string>()
  /** Versions by name that the reader has; undefined for an object that does not exist. */
  readonly #sent = new Map<string, string | undefined>()
  #bytes = 0

  constructor(state: Pick<RelayState, 'nameBytes'>) {
    this.#state = state
  }

  get all(): Iterable<string> {
    return this.#names
  }

  get count(): number {
    return this.#names.size
  }

  add(names: Iterable<string>): void {
    for (const name of names) {
      if (this.#names.has(name)) continue
      this.#names.add(name)
      this.#hold(bytesOf(name))
    }
    // The names of all readers have 64 MiB. A reader with little is not refused for those of others.
    if (this.#state.nameBytes > 64 * 1024 * 1024 && this.#bytes > 4 * 1024)
      throw tooMuch('clients subscribe to too many names')
  }

  remove(names: Iterable<string>): void {
    for (const name of names) {
      if (this.#names.delete(name)) this.#hold(-bytesOf(name))
      this.#sent.delete(name)
    }
  }

  /** The reader is gone. */
  release(): void {
    this.#hold(-this.#bytes)
  }

  /** Records that the reader has this version of an object. */
  holds(name: string, version: string): void {
    if (this.#names.has(name)) this.#sent.set(name, version)
  }

  /** Gives what the reader does not have yet, and records it as sent. */
  takeNews(collection: Collection): { readonly changed: readonly Entry[]; readonly gone: readonly string[] } {
    const changed: Entry[] = []
    const gone: string[] = []
    for (const name of this.#names) {
      const entry = collection.get(name)
      if (this.#sent.has(name) && this.#sent.get(name) === entry?.version) continue
      this.#sent.set(name, entry?.version)
      if (entry === undefined) gone.push(name)
      else changed.push(entry)
    }
    return { changed, gone }
  }

  #hold(bytes: number): void {
    this.#bytes += bytes
    this.#state.nameBytes += bytes
  }
}

/** Memory of a name and of the version that was sent. */
function bytesOf(name: string): number {
  return name.length + 128
}

/** The reader exceeds a relay's limits for one reader. */
export function tooMuch(what: string): RpcError {
  return new RpcError(RESOURCE_EXHAUSTED, what)
}
