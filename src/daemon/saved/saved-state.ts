import { type Clock, finishInSlices, Pacer, slicingOf } from '../../base/clock.ts'
import { errorOf, errorText } from '../../base/errors.ts'
import type { Log } from '../../base/log.ts'
import type { Config } from '../../config/config.ts'
import type { Snapshot } from '../../model/snapshot.ts'
import { NFT_FAMILIES } from '../../modes/common/tables.ts'
import type { ModeContext } from '../../modes/mode.ts'
import { findMode, readModes } from '../../modes/registry.ts'
import type { Metrics } from '../../telemetry/metrics.ts'
import type { ActiveMode } from '../active-mode.ts'
import type { Intake } from '../intake.ts'
import { WarningPace } from '../warning-pace.ts'
import { readState, SavedStateError, StateFile, type StateOwner } from './state-file.ts'
import { StateSaver } from './state-saver.ts'

/** Makes the SavedState of a daemon; undefined where nothing is kept: without --state-dir, and with files as the source. */
export function savedStateOf(
  { stateDir, source, once, backend, serviceProxyName }: Config,
  options: Omit<SavedStateOptions, 'folder' | 'proxy'>,
): SavedState | undefined {
  if (stateDir === '' || source.kind !== 'kube' || once || backend !== 'netlink') return undefined
  return new SavedState({ ...options, folder: stateDir, proxy: serviceProxyName ?? '' })
}

interface SavedStateOptions {
  readonly clock: Clock
  readonly log: Log
  readonly wallMs: () => number
  readonly folder: string
  readonly proxy: string
  /** Gives the owner of the state that this process serves and saves. Rejects when the credentials cannot be read. */
  readonly owner: () => Promise<StateOwner | undefined>
  readonly intake: Pick<Intake, 'standIn' | 'isStale' | 'complete' | 'status'>
  /** Tests whether the kernel may be brought to a Snapshot that is older than the API server's. */
  readonly mayServe: (snapshot: Snapshot) => Promise<boolean>
  readonly metrics: Metrics
}

/** Time that the API server has to answer, unless it turns out earlier that it does not. */
const GRACE_MS = 500
/** Time that it has for its first lists once it has answered: until then, reading the file would only delay them. */
const LISTS_MS = 3_000

interface Loaded {
  readonly snapshot: Snapshot
  readonly confirmedWallMs: number
}

/**
 * Keeps the state of this node on disk, and serves it at a start while the API server does not answer
 * (docs/decisions/0024). Nothing that the kernel holds becomes older by that.
 */
export class SavedState {
  readonly #options: SavedStateOptions
  readonly #file: StateFile
  readonly #saver: StateSaver
  readonly #pacer: Pacer
  #loaded: Loaded | undefined
  #beganMs = 0
  #isAnswered = false
  #phase: 'waiting' | 'held-back' | 'serving' | 'over' = 'waiting'
  readonly #pace = new WarningPace()
  /** The time from which a failed check is logged again. */
  #warnMs = Number.NEGATIVE_INFINITY
  #failure = ''

  constructor(options: SavedStateOptions) {
    const { clock, wallMs, folder, proxy, owner, intake } = options
    this.#options = options
    this.#file = new StateFile(folder, proxy)
    this.#saver = new StateSaver({
      clock,
      wallMs,
      file: this.#file,
      owner,
      heardMs: () => (intake.status?.missing.length === 0 ? intake.status.heardMs : undefined),
      saved: bytes => this.#saved(bytes),
      failed: error => this.#failed(error),
    })
    this.#pacer = new Pacer({ clock, run: () => this.#attempt() })
  }

  /** Seconds since a source confirmed what is served; undefined while a source is complete, or nothing is served. */
  get staleS(): number | undefined {
    if (this.#phase !== 'serving' || this.#loaded === undefined) return undefined
    return Math.max(0, this.#options.wallMs() - this.#loaded.confirmedWallMs) / 1_000
  }

  begin(): void {
    this.#beganMs = this.#options.clock.nowMs()
    this.#pacer.wake(GRACE_MS)
  }

  answered(): void {
    this.#isAnswered = true
  }

  troubled(): void {
    this.#isAnswered = false
    if (this.#phase === 'waiting') this.#pacer.wake()
  }

  /** The source is complete: its objects replace the saved ones. */
  confirmed(): void {
    const { log } = this.#options
    const { staleS } = this
    if (staleS !== undefined)
      log.info({ staleS: Math.round(staleS) }, 'the API server answers; its lists replace the saved state')
    this.#end()
  }

  synced(snapshot: Snapshot): void {
    if (this.#options.intake.isStale(snapshot)) return
    this.#end()
    this.#saver.offer(snapshot)
  }

  async stop(): Promise<void> {
    await this.#pacer.stop()
    await this.#saver.stop()
  }

  #end(): void {
    if (this.#phase === 'over') return
    this.#phase = 'over'
    this.#loaded = undefined
    this.#pacer.cancel()
  }

  /** Gives the time to the next attempt, or to the repetition of the warning. */
  async #attempt(): Promise<number | undefined> {
    if (this.#phase === 'serving') return this.#warn(SERVING)
    const { clock, intake } = this.#options
    if (this.#phase === 'over' || intake.complete) return undefined
    const isReading = this.#isAnswered && clock.nowMs() < this.#beganMs + LISTS_MS
    if (this.#phase === 'waiting' && isReading) return GRACE_MS
    try {
      this.#loaded ??= await this.#load()
      if (this.#loaded === undefined) {
        this.#phase = 'over'
        return undefined
      }
      return await this.#serve(this.#loaded)
    } catch (thrown) {
      if (thrown instanceof SavedStateError) this.#refuse(thrown)
      else this.#unreadable(errorOf(thrown))
      // Again in 30 s, as long as the first pause between warnings.
      return thrown instanceof SavedStateError ? undefined : 30_000
    }
  }

  /** Each failure of the source leads to another attempt, and the warnings come further and further apart. */
  #unreadable(err: Error): void {
    const { clock, log } = this.#options
    if (clock.nowMs() < this.#warnMs) return
    log.warn({ err }, UNREADABLE)
    this.#warnMs = clock.nowMs() + this.#pace.next()
  }

  async #load(): Promise<Loaded | undefined> {
    const { owner, clock, log } = this.#options
    const found = await this.#file.read()
    if (found === undefined)
      log.info({ file: this.#file.path }, 'no saved state yet: nothing can be served before the first list')
    const whose = found === undefined ? undefined : await owner()
    if (found === undefined || whose === undefined) return undefined
    const snapshot = await finishInSlices(readState(found.bytes, whose), slicingOf(clock))
    return { snapshot, confirmedWallMs: found.confirmedWallMs }
  }

  async #serve({ snapshot }: Loaded): Promise<number | undefined> {
    const { intake, mayServe } = this.#options
    const outcome = await intake.standIn(snapshot, mayServe)
    switch (outcome) {
      case 'early':
        // The addresses come from the kernel, soon.
        return 20
      case 'complete':
        this.#loaded = undefined
        return undefined
      case 'denied':
        this.#phase = 'held-back'
        return this.#heldBack()
      case 'stands':
        this.#phase = 'serving'
        this.#pace.reset()
        return this.#warn(SERVING)
    }
  }

  /** The objects are read again for the next check: they need as much memory as those that the source gathers. */
  #heldBack(): number {
    const repeatMs = this.#warn(HELD_BACK)
    this.#loaded = undefined
    return repeatMs
  }

  #warn(text: string): number {
    const { log, wallMs } = this.#options
    const { snapshot, confirmedWallMs } = this.#loaded ?? {}
    const facts = {
      file: this.#file.path,
      staleS: Math.max(0, Math.round((wallMs() - (confirmedWallMs ?? wallMs())) / 1_000)),
      services: snapshot?.services.size,
      slices: snapshot?.sliceByKey.size,
    }
    log.warn(facts, text)
    return this.#pace.next()
  }

  #refuse({ reason, message }: SavedStateError): void {
    const { log, metrics } = this.#options
    this.#phase = 'over'
    metrics.kprobe_saved_state_refused_total.inc({ reason })
    log.error(
      { file: this.#file.path, reason },
      `ignoring the saved state: ${message}; the next list replaces it`,
    )
  }

  #saved(bytes: number): void {
    const { log, metrics } = this.#options
    metrics.kprobe_saved_state_saves_total.inc({ outcome: 'saved' })
    metrics.kprobe_saved_state_bytes.set(bytes)
    log.debug({ file: this.#file.path, bytes }, 'state saved')
    if (this.#failure !== '') log.info({ file: this.#file.path }, 'the state can be saved again')
    this.#failure = ''
  }

  #failed(error: unknown): void {
    const { log, metrics } = this.#options
    const text = errorText(error)
    metrics.kprobe_saved_state_saves_total.inc({ outcome: 'failed' })
    if (text === this.#failure) return
    this.#failure = text
    log.error(
      { file: this.#file.path },
      `cannot save the state for the next boot: ${text}; retrying; Services are served`,
    )
  }
}

const SERVING =
  'the API server does not answer: kprobe serves the saved state until it does; endpoints may have moved since'
const HELD_BACK =
  'the API server does not answer: the kernel serves Services that differ from the saved state and may be newer; kprobe changes nothing until the API server answers'
const UNREADABLE =
  'cannot check whether the saved state may be served; retrying; nothing changes in the kernel'

/**
 * Tests whether serving a saved Snapshot makes no Service older that the kernel serves. It may where the kernel serves
 * none, as after a reboot, or exactly those. What relays of an earlier process served ended with it.
 */
export async function mayServe(
  snapshot: Snapshot,
  { config, sockets, clock }: Pick<ModeContext, 'config' | 'sockets' | 'clock'>,
  active: Pick<ActiveMode, 'mode' | 'differenceTo'> | undefined,
): Promise<boolean> {
  if (active === undefined) return false
  const { serviceProxyName: proxyName } = config
  const { held } = await readModes({ families: NFT_FAMILIES, proxyName, sockets, clock })
  const lasting = held.filter(({ mode }) => findMode(mode).forwards !== true)
  if (lasting.length === 0) return true
  if (lasting.some(({ mode }) => mode !== active.mode)) return false
  const { lines, complete } = await active.differenceTo(snapshot)
  return complete && lines.length === 0
}
