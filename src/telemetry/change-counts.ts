import { PersistentMap } from '../base/persistent-map.ts'
import type { Snapshot } from '../model/snapshot.ts'

interface Changes {
  readonly services: number
  readonly slices: number
}

/** Counts the objects that differ between two Snapshots. The cost follows the changes. */
export function changesBetween(before: Snapshot | undefined, now: Snapshot): Changes {
  if (before === undefined) return { services: now.services.size, slices: now.sliceByKey.size }
  return {
    services: PersistentMap.changes(before.services, now.services).length,
    slices: PersistentMap.changes(before.sliceByKey, now.sliceByKey).length,
  }
}

/** Counts the changes that the kernel does not have yet. */
export class PendingChanges {
  #newest: Snapshot | undefined
  #services = 0
  #slices = 0

  /** Takes a Snapshot to program. Gives the changes since the one before. */
  offered(snapshot: Snapshot): Changes {
    const news = changesBetween(this.#newest, snapshot)
    this.#newest = snapshot
    this.#services += news.services
    this.#slices += news.slices
    return news
  }

  /** Takes the Snapshot that the kernel holds now. */
  synced(snapshot: Snapshot): void {
    const left = this.#newest === undefined ? NONE : changesBetween(snapshot, this.#newest)
    this.#services = left.services
    this.#slices = left.slices
  }

  get now(): Changes {
    return { services: this.#services, slices: this.#slices }
  }
}

const NONE: Changes = { services: 0, slices: 0 }
