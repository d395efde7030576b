import { Pauses, type Steps } from '../../base/steps.ts'
import { isSame } from '../../model/equal.ts'
import type { ObjectEvent } from './read-objects.ts'

/** An object described by two files. */
interface Conflict {
  readonly id: string
  readonly kept: string
  readonly ignored: string
}

export interface CatalogueChange {
  readonly events: readonly ObjectEvent[]
  /** The conflicts that this change causes. */
  readonly conflicts: readonly Conflict[]
}

interface Entry {
  objects: Map<string, ObjectEvent>
  /** The file is gone and its objects stay, until another file describes them. */
  gone: boolean
}

/**
 * Which file says what. Turns the new content of a file into the differences that it makes to the whole: the object that
 * the first file by name describes counts, and files that still exist come before those that are gone.
 */
export class Catalogue {
  readonly #files = new Map<string, Entry>()
  /** The file whose description counts, by object id. */
  readonly #owners = new Map<string, string>()
  /** The other files that describe an object; nearly always empty. */
  readonly #others = new Map<string, Set<string>>()

  get size(): number {
    return this.#owners.size
  }

  objectsOf(file: string): number {
    return this.#files.get(file)?.objects.size ?? 0
  }

  /** Takes the content of a file, new or changed. Keeps `objects`. Nothing else may be asked before it has ended. */
  *put(file: string, objects: Map<string, ObjectEvent>): Steps<CatalogueChange> {
    const before = this.#files.get(file)?.objects ?? new Map<string, ObjectEvent>()
    const events: ObjectEvent[] = []
    const conflicts: Conflict[] = []
    this.#files.set(file, { objects, gone: false })
    const pauses = new Pauses()
    for (const [id, event] of objects) {
      if (pauses.due()) yield
      const old = before.get(id)
      // The old value is the one that everybody shares already.
      if (old !== undefined && isSame(old, event)) objects.set(id, old)
      const owner = this.#owners.get(id)
      if (owner === undefined || owner === file) {
        this.#owners.set(id, file)
        if (objects.get(id) !== old) events.push(event)
      } else events.push(...this.#contest(file, { id, event, owner, known: old !== undefined }, conflicts))
    }
    for (const [id, event] of before) {
      if (pauses.due()) yield
      if (!objects.has(id)) events.push(...this.#release(file, id, event))
    }
    return { events, conflicts }
  }

  /** The file is no longer there: what it said stays valid, but gives way to any file that exists. */
  vanish(file: string): CatalogueChange {
    const entry = this.#files.get(file)
    const events: ObjectEvent[] = []
    if (entry === undefined) return { events, conflicts: [] }
    entry.gone = true
    for (const [id, event] of entry.objects) {
      const others = this.#others.get(id)
      if (others === undefined) continue
      entry.objects.delete(id)
      events.push(...this.#release(file, id, event))
    }
    if (entry.objects.size === 0) this.#files.delete(file)
    return { events, conflicts: [] }
  }

  #contest(
    file: string,
    claim: {
      readonly id: string
      readonly event: ObjectEvent
      readonly owner: string
      readonly known: boolean
    },
    conflicts: Conflict[],
  ): ObjectEvent[] {
    const { id, event, owner, known } = claim
    const holder = this.#files.get(owner)
    const counted = holder?.objects.get(id)
    const wins = holder?.gone === true || file < owner
    const [kept, ignored] = wins ? [file, owner] : [owner, file]
    if (wins) this.#owners.set(id, kept)
    if (holder?.gone === true) {
      holder.objects.delete(id)
      if (holder.objects.size === 0) this.#files.delete(owner)
    } else {
      const others = this.#others.get(id) ?? new Set()
      this.#others.set(id, others.add(ignored))
      others.delete(kept)
      if (!known) conflicts.push({ id, kept, ignored })
    }
    return wins && !isSame(counted, event) ? [event] : []
  }

  /** `file` describes the object no longer. */
  #release(file: string, id: string, event: ObjectEvent): ObjectEvent[] {
    const others = this.#others.get(id)
    if (this.#owners.get(id) !== file) {
      others?.delete(file)
      if (others?.size === 0) this.#others.delete(id)
      return []
    }
    const heir = others === undefined ? undefined : firstOf(others)
    if (heir === undefined) {
      this.#owners.delete(id)
      return [{ ...event, value: undefined }]
    }
    this.#owners.set(id, heir)
    others?.delete(heir)
    if (others?.size === 0) this.#others.delete(id)
    const next = this.#files.get(heir)?.objects.get(id)
    return next === undefined || isSame(next, event) ? [] : [next]
  }
}

function firstOf(names: ReadonlySet<string>): string | undefined {
  return [...names].sort()[0]
}
