import { compareVersions, isOlder } from '../source/kube/object-index.ts'
import type { Frame } from './frames.ts'

/** Changes that were published together. The last frame bears the revision. */
export interface Publication {
  readonly revision: string
  readonly frames: readonly Frame[]
  readonly bytes: number
  /**
   * The revision before it, if it is the net difference of a list: changes that undid each other are unknown, so that a
   * reader between the two revisions cannot continue.
   */
  readonly gapFrom: string | undefined
}

/**
 * The position of a revision, or why it has none: it is newer than all, older than the history, or maybe of a history
 * that a restore of the API server has ended.
 */
export type PositionOrReason = number | 'ahead' | 'gone' | 'another'

const PUBLICATIONS_MAX = 16_384

/**
 * The publications of the recent past. A position is a number of publications since the start: the next one that a reader
 * gets.
 */
export class History {
  readonly bytesMax: number
  /** Readers at this revision, or a later one, can continue. */
  floor = ''
  #publications: Publication[] = []
  /** The position of the first publication that is kept; may fall below zero. */
  #first = 0
  #bytes = 0
  /** The newest revision of a history that has ended. Revisions up to it may be of that one, or of the present one. */
  #endedAt: string | undefined

  /** 32 MiB for each kind: a node that comes back after minutes gets the difference, and not all objects. */
  constructor(bytesMax = 32 * 1024 * 1024) {
    this.bytesMax = bytesMax
  }

  get bytes(): number {
    return this.#bytes
  }

  /** The position behind the newest publication. */
  get head(): number {
    return this.#first + this.#publications.length
  }

  holds(position: number): boolean {
    return position >= this.#first && position <= this.head
  }

  at(position: number): Publication | undefined {
    return this.#publications[position - this.#first]
  }

  positionOf(revision: string, newest: string): PositionOrReason {
    const order = compareVersions(revision, newest)
    if (order === undefined) return 'gone'
    const isDoubtful = this.#endedAt !== undefined && !isOlder(this.#endedAt, revision)
    if (isDoubtful && isOlder(this.floor, revision)) return 'another'
    if (order > 0) return 'ahead'
    if (isOlder(revision, this.floor)) return 'gone'
    let [low, high] = [0, this.#publications.length]
    while (low < high) {
      const middle = (low + high) >> 1
      const isRead = !isOlder(revision, this.#publications[middle]?.revision ?? '')
      if (isRead) low = middle + 1
      else high = middle
    }
    const gapFrom = this.#publications[low]?.gapFrom
    return gapFrom !== undefined && isOlder(gapFrom, revision) ? 'gone' : this.#first + low
  }

  /** Adds the newest publication, and forgets the oldest ones beyond the bounds. */
  append(publication: Publication): void {
    this.#publications.push(publication)
    this.#bytes += publication.bytes
    let dropped = 0
    while (this.#bytes > this.bytesMax || this.#publications.length - dropped > PUBLICATIONS_MAX) {
      const oldest = this.#publications[dropped]
      if (oldest === undefined) break
      this.#bytes -= oldest.bytes
      this.floor = oldest.revision
      dropped++
    }
    if (dropped > 0) this.#publications = this.#publications.slice(dropped)
    this.#first += dropped
  }

  prepend(earlier: readonly Publication[], floor: string): void {
    this.#publications = [...earlier, ...this.#publications]
    this.#first -= earlier.length
    this.#bytes += earlier.reduce((sum, { bytes }) => sum + bytes, 0)
    this.floor = floor
  }

  /** Another history begins at `revision`; the one before ended at `newest`. No position is left. */
  restart(newest: string, revision: string): void {
    this.#first = this.head + 1
    this.#publications = []
    this.#bytes = 0
    this.floor = revision
    if (this.#endedAt === undefined || isOlder(this.#endedAt, newest)) this.#endedAt = newest
  }
}
