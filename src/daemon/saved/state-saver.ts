import { type Clock, Pacer, restMs, within } from '../../base/clock.ts'
import { rfc3339 } from '../../base/text.ts'
import type { Snapshot } from '../../model/snapshot.ts'
import { type StateFile, type StateOwner, stateChunks } from './state-file.ts'

interface StateSaverOptions {
  readonly clock: Clock
  readonly wallMs: () => number
  readonly file: Pick<StateFile, 'write' | 'confirm'>
  readonly owner: () => Promise<StateOwner | undefined>
  /** Monotonic milliseconds of the last message from the source; undefined until it has delivered everything once. */
  readonly heardMs: () => number | undefined
  readonly saved: (bytes: number) => void
  readonly failed: (error: unknown) => void
}

/** The size of a save, and its time of computing. */
interface Saved {
  readonly bytes: number
  readonly computedMs: number
}

const NOTHING: Saved = { bytes: 0, computedMs: 0 }
const REST_MS = 10_000
/** Between two saves. The share is that of making the file alone: a busy daemon saves as often as an idle one. */
const SAVE_PACE = { share: 0.01, minMs: REST_MS } as const

/**
 * Writes what the kernel holds to the file of --state-dir, at a distance in which changes coalesce. Between two saves it
 * does nothing for a change. While nothing changes, the time of the file follows the messages of the source.
 */
export class StateSaver {
  readonly #options: StateSaverOptions
  readonly #pacer: Pacer
  #newest: Snapshot | undefined
  #saved: Snapshot | undefined

  constructor(options: StateSaverOptions) {
    this.#options = options
    this.#pacer = new Pacer({ clock: options.clock, run: () => this.#run() })
  }

  /** Takes a Snapshot that the kernel holds, and that a source has confirmed; ignores those of a source before this one. */
  offer(snapshot: Snapshot): void {
    if (this.#options.heardMs() === undefined) return
    const before = this.#newest
    this.#newest = snapshot
    if (isSameState(before, snapshot)) return
    // The start has other work.
    this.#pacer.wake(before === undefined ? 1_000 : 0)
  }

  /** Saves what is not saved yet. Delays the exit by a second at most: the end of the programming has more of it. */
  async stop(): Promise<void> {
    await within(this.#options.clock, 1_000, this.#last())
  }

  async #last(): Promise<void> {
    await this.#pacer.stop()
    await this.#save()
  }

  async #run(): Promise<number | undefined> {
    const { clock } = this.#options
    const beganMs = clock.nowMs()
    const { bytes, computedMs } = await this.#save()
    // A disk of a small machine bears 128 KB/s on average for years.
    if (bytes > 0) this.#pacer.rest(Math.max(restMs(computedMs, SAVE_PACE), bytes / 128))
    const isWaiting = this.#newest !== undefined && !isSameState(this.#saved, this.#newest)
    if (isWaiting) this.#pacer.rest(REST_MS)
    // Once a minute, the file gets the time of the last message from the source.
    return isWaiting ? 0 : Math.max(0, 60_000 - (clock.nowMs() - beganMs))
  }

  /** Gives 0 bytes where there was nothing to write. A try that fails costs as much as a save. */
  async #save(): Promise<Saved> {
    const { file, clock, wallMs, owner, saved, failed } = this.#options
    const snapshot = this.#newest
    const confirmedWallMs = this.#confirmedWallMs
    if (snapshot === undefined || confirmedWallMs === undefined) return this.#forget()
    let timed: Timed | undefined
    try {
      if (isSameState(this.#saved, snapshot)) {
        await file.confirm(confirmedWallMs)
        return NOTHING
      }
      const whose = await owner()
      if (whose === undefined) return NOTHING
      // The owner may be that of another source by now.
      if (this.#confirmedWallMs === undefined) return this.#forget()
      timed = new Timed(stateChunks({ owner: whose, savedAt: rfc3339(wallMs()) }, snapshot), clock)
      const bytes = await file.write(timed)
      this.#saved = snapshot
      await file.confirm(confirmedWallMs)
      saved(bytes)
      return timed.cost
    } catch (error) {
      failed(error)
      // The file may be gone: the next run writes it anew.
      this.#saved = undefined
      return timed?.cost ?? NOTHING
    }
  }

  /** Drops objects of a source that another one replaces: they have another owner, and no source confirms them. */
  #forget(): Saved {
    this.#newest = undefined
    this.#saved = undefined
    return NOTHING
  }

  get #confirmedWallMs(): number | undefined {
    const { clock, wallMs, heardMs } = this.#options
    const heard = heardMs()
    return heard === undefined ? undefined : wallMs() - (clock.nowMs() - heard)
  }
}

/** Chunks, their bytes so far, and the time that it took to make them. */
class Timed implements Iterable<Buffer> {
  #bytes = 0
  #ms = 0
  readonly #chunks: Iterable<Buffer>
  readonly #clock: Pick<Clock, 'nowMs'>

  constructor(chunks: Iterable<Buffer>, clock: Pick<Clock, 'nowMs'>) {
    this.#chunks = chunks
    this.#clock = clock
  }

  get cost(): Saved {
    return { bytes: this.#bytes, computedMs: this.#ms }
  }

  *[Symbol.iterator](): Iterator<Buffer> {
    let fromMs = this.#clock.nowMs()
    for (const chunk of this.#chunks) {
      this.#ms += this.#clock.nowMs() - fromMs
      this.#bytes += chunk.length
      yield chunk
      fromMs = this.#clock.nowMs()
    }
    this.#ms += this.#clock.nowMs() - fromMs
  }
}

function isSameState(a: Snapshot | undefined, b: Snapshot | undefined): boolean {
  if (a === undefined || b === undefined) return a === b
  return (
    a.services === b.services &&
    a.sliceByKey === b.sliceByKey &&
    a.serviceCidrs === b.serviceCidrs &&
    a.node === b.node &&
    a.apiEndpoints === b.apiEndpoints
  )
}
