import { type Clock, Pacer, within } from '../../base/clock.ts'
import { rfc3339 } from '../../base/text.ts'
import type { Snapshot } from '../../model/snapshot.ts'
import { type StateFile, type StateHeader, type StateOwner, stateChunks } from './state-file.ts'

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

const REST_MS = 10_000

/**
 * Writes what the kernel holds to the file of --state-dir, at a distance in which changes coalesce. Between two saves it
 * does nothing for a change. While nothing changes, the time of the file follows the messages of the source.
 */
export class StateSaver {
  readonly #options: StateSaverOptions
  readonly #pacer: Pacer
  #newest: Snapshot | undefined
  #saved: Snapshot | undefined
  /** Bytes of the file that the last run has made, also where it could not be written. */
  #made = 0

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
    this.#made = 0
    await this.#save()
    // A disk of a small machine bears 128 KB/s on average for years. Making them takes less than 1 % of a processor.
    if (this.#made > 0) this.#pacer.rest(Math.max(REST_MS, this.#made / 128))
    const isWaiting = this.#newest !== undefined && !isSameState(this.#saved, this.#newest)
    if (isWaiting) this.#pacer.rest(REST_MS)
    // Once a minute, the file gets the time of the last message from the source.
    return isWaiting ? 0 : Math.max(0, 60_000 - (clock.nowMs() - beganMs))
  }

  async #save(): Promise<void> {
    const { file, wallMs, owner, saved, failed } = this.#options
    const snapshot = this.#newest
    const confirmedWallMs = this.#confirmedWallMs
    if (snapshot === undefined || confirmedWallMs === undefined) return this.#forget()
    try {
      if (isSameState(this.#saved, snapshot)) {
        await file.confirm(confirmedWallMs)
        return
      }
      const whose = await owner()
      if (whose === undefined) return
      // The owner may be that of another source by now.
      if (this.#confirmedWallMs === undefined) return this.#forget()
      const bytes = await file.write(this.#chunks({ owner: whose, savedAt: rfc3339(wallMs()) }, snapshot))
      this.#saved = snapshot
      await file.confirm(confirmedWallMs)
      saved(bytes)
    } catch (error) {
      failed(error)
      // The file may be gone: the next run writes it anew.
      this.#saved = undefined
    }
  }

  *#chunks(header: StateHeader, snapshot: Snapshot): Generator<Buffer> {
    for (const chunk of stateChunks(header, snapshot)) {
      this.#made += chunk.length
      yield chunk
    }
  }

  /** Drops objects of a source that another one replaces: they have another owner, and no source confirms them. */
  #forget(): void {
    this.#newest = undefined
    this.#saved = undefined
  }

  get #confirmedWallMs(): number | undefined {
    const { clock, wallMs, heardMs } = this.#options
    const heard = heardMs()
    return heard === undefined ? undefined : wallMs() - (clock.nowMs() - heard)
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
