import type { PersistentMap } from '../../base/persistent-map.ts'
import type { ServiceKey } from '../../model/service.ts'

/** An object of the kernel that several Services may need. */
interface Used {
  /** The users, sorted. */
  readonly services: readonly ServiceKey[]
}

/** The objects in use during one render: each exists as long as one Service uses it. Unchanged ones stay identical. */
export class UsersDraft<T extends Used> {
  readonly #base: PersistentMap<T>
  readonly #continuing: boolean
  readonly #changes = new Map<string, T | undefined>()
  readonly #same: (there: T, services: readonly ServiceKey[]) => T

  /** `withUsers` gives an object with other users. Unless `continuing`, no object of the base is in use. */
  constructor(given: {
    readonly base: PersistentMap<T>
    readonly continuing: boolean
    readonly withUsers: (thing: T, services: readonly ServiceKey[]) => T
  }) {
    this.#base = given.base
    this.#continuing = given.continuing
    this.#same = given.withUsers
  }

  get(key: string): T | undefined {
    const changed = this.#changes.get(key)
    if (changed !== undefined || !this.#continuing || this.#changes.has(key)) return changed
    return this.#base.get(key)
  }

  add(key: string, service: ServiceKey, make: (services: readonly ServiceKey[]) => T): void {
    const there = this.get(key)
    if (there === undefined) this.#changes.set(key, make([service]))
    else {
      const services = withUser(there.services, service)
      if (services !== there.services) this.#changes.set(key, this.#same(there, services))
    }
  }

  remove(key: string, service: ServiceKey): void {
    const there = this.get(key)
    if (there === undefined || !there.services.includes(service)) return
    const services = there.services.filter(its => its !== service)
    this.#changes.set(key, services.length === 0 ? undefined : this.#same(there, services))
  }

  finish(): PersistentMap<T> {
    const base = this.#base
    if (this.#continuing) {
      for (const [key, after] of this.#changes) this.#changes.set(key, kept(base.get(key), after))
      return base.withOwn(this.#changes)
    }
    if (base.size === 0) return base.withOwn(this.#changes)
    const all = new Map<string, T | undefined>()
    for (const key of base.keys()) if (!this.#changes.has(key)) all.set(key, undefined)
    for (const [key, after] of this.#changes) all.set(key, kept(base.get(key), after))
    return base.withOwn(all)
  }
}

/** Gives the present object where it has the same users: an object depends on its key alone. */
function kept<T extends Used>(before: T | undefined, after: T | undefined): T | undefined {
  if (before === undefined || after === undefined || before === after) return after
  const { services } = before
  const isSame =
    services.length === after.services.length && services.every((its, i) => its === after.services[i])
  return isSame ? before : after
}

function withUser(services: readonly ServiceKey[], service: ServiceKey): readonly ServiceKey[] {
  const at = services.findIndex(its => its >= service)
  if (services[at] === service) return services
  return at < 0 ? [...services, service] : services.toSpliced(at, 0, service)
}
