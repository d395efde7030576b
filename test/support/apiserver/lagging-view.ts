import type { Cancel } from '../../../src/base/clock.ts'
import type { ApiObject } from '../../../src/source/kube/wire/tables.ts'
import type { Change, Store, View } from './store.ts'

/** A replica that has not heard of the newest `behind` versions. */
export class LaggingView implements View {
  readonly #store: Store
  readonly #behind: bigint

  constructor(store: Store, behind: bigint) {
    this.#store = store
    this.#behind = behind
  }

  get version(): bigint {
    const version = this.#store.version - this.#behind
    return version < this.#store.compacted ? this.#store.compacted : version
  }

  get compacted(): bigint {
    return this.#store.compacted
  }

  listAt(plural: string, version: bigint): readonly ApiObject[] {
    return this.#store.listAt(plural, version)
  }

  since(plural: string, version: bigint): readonly Change[] {
    return this.#store.since(plural, version).filter(change => change.version <= this.version)
  }

  subscribe(plural: string, heard: (change: Change | undefined) => void): Cancel {
    let told = this.version
    return this.#store.subscribe(plural, () => {
      const news = this.since(plural, told)
      told = this.version
      if (news.length === 0) heard(undefined)
      for (const change of news) heard(change)
    })
  }
}
