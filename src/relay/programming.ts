import { compareVersions } from '../source/kube/object-index.ts'
import type { Revisions } from '../source/source.ts'

type Kind = keyof Revisions

/** The start of a latency: the time in the change itself, or the time at which the relay read it. */
type LatencyOrigin = 'trigger' | 'receipt'

export interface ProgrammingLatency {
  readonly share: number
  readonly origin: LatencyOrigin
  readonly seconds: number
}

/** A change whose way into the kernels of all nodes is followed. */
interface Mark {
  readonly kind: Kind
  readonly revision: string
  readonly origin: LatencyOrigin
  /** Monotonic milliseconds. */
  readonly fromMs: number
  readonly openedMs: number
  nodes: number
  reached: number
}

/** Shares of nodes, the last one for all of them. */
const SHARES = [0.5, 0.9, 0.99, 1] as const

/** Follows one change a second and kind until the kernels of all nodes hold it. A report costs what it passes. */
export class ProgrammingLatencies {
  readonly #observe: (latency: ProgrammingLatency) => void
  #marks: Mark[] = []
  readonly #markedMs = new Map<Kind, number>()

  constructor(observe: (latency: ProgrammingLatency) => void) {
    this.#observe = observe
  }

  /** A change, with the monotonic time that it bears; undefined where it bears none. */
  changed(kind: Kind, revision: string, { nowMs, triggerMs }: { nowMs: number; triggerMs?: number }): void {
    // One change of each kind is followed in this time.
    if (nowMs - (this.#markedMs.get(kind) ?? Number.NEGATIVE_INFINITY) < 1_000) return
    if (this.#marks.length >= 128) return
    this.#markedMs.set(kind, nowMs)
    const origin = triggerMs === undefined ? 'receipt' : 'trigger'
    const fromMs = triggerMs ?? nowMs
    this.#marks.push({ kind, revision, origin, fromMs, openedMs: nowMs, nodes: 0, reached: 0 })
  }

  /** The kernel of a node has gone from one revision of each kind to another. */
  advanced(before: Revisions | undefined, after: Revisions): void {
    for (const mark of this.#marks) {
      const { kind, revision } = mark
      if (before?.[kind] !== after[kind] && !has(before?.[kind], revision) && has(after[kind], revision))
        mark.nodes++
    }
  }

  /** Observes what was reached, of so many nodes that report. */
  settle(nodes: number, nowMs: number): void {
    this.#marks = this.#marks.filter(mark => {
      // A change that some node does not hold after so long counts with this age.
      const isLate = nowMs - mark.openedMs > 60_000
      for (const share of SHARES.slice(mark.reached)) {
        if (!isLate && (nodes === 0 || mark.nodes < Math.ceil(share * nodes))) break
        mark.reached++
        if (nodes > 0)
          this.#observe({ share, origin: mark.origin, seconds: Math.max(0, nowMs - mark.fromMs) / 1_000 })
      }
      return mark.reached < SHARES.length
    })
  }

  /** The history is another one. */
  forget(): void {
    this.#marks = []
  }
}

function has(held: string | undefined, revision: string): boolean {
  return held !== undefined && (compareVersions(held, revision) ?? -1) >= 0
}

/** The times of the last changes of one kind: since when a node lacks something. */
export class ChangeTimes {
  readonly #windows: { revision: string; readonly fromMs: number }[] = []
  #changed = ''

  /** The revision of the last change; empty before the first. */
  get changed(): string {
    return this.#changed
  }

  add(revision: string, nowMs: number): void {
    if (revision === this.#changed) return
    this.#changed = revision
    const last = this.#windows.at(-1)
    // Changes of this time count as one.
    if (last !== undefined && nowMs - last.fromMs < 250) last.revision = revision
    else this.#windows.push({ revision, fromMs: nowMs })
    if (this.#windows.length > WINDOWS_MAX) this.#windows.splice(0, WINDOWS_MAX / 2)
  }

  /** Gives the time of the first change that this revision lacks; undefined if it lacks none. */
  lackedSinceMs(held: string): number | undefined {
    if (has(held, this.#changed)) return undefined
    let [low, high] = [0, this.#windows.length]
    while (low < high) {
      const middle = (low + high) >> 1
      if (has(held, this.#windows[middle]?.revision ?? '')) low = middle + 1
      else high = middle
    }
    return this.#windows[low]?.fromMs
  }

  forget(): void {
    this.#windows.length = 0
    this.#changed = ''
  }
}

const WINDOWS_MAX = 2_048
