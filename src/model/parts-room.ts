/** Holds parts of objects: the Snapshot of a daemon, a list that arrives. */
export interface PartsHolder {
  readonly parts: number
}

/** A list that arrives may have so much even where everything else is full: else nothing could ever be read again. */
const LEAST_SHARE = 0.25

/** One limit for all parts that this process holds: of its objects, and of the lists that arrive. */
export class PartsRoom {
  readonly partsMax: number
  readonly #holders = new Set<PartsHolder>()

  constructor(partsMax: number) {
    this.partsMax = partsMax
  }

  enter(holder: PartsHolder): void {
    this.#holders.add(holder)
  }

  leave(holder: PartsHolder): void {
    this.#holders.delete(holder)
  }

  /** Computes how many parts a list may hold beside all other holders. */
  limitOf(list: PartsHolder): number {
    let left = this.partsMax
    for (const holder of this.#holders) if (holder !== list) left -= holder.parts
    return Math.max(left, LEAST_SHARE * this.partsMax)
  }
}
