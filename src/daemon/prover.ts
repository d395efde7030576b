import { finishInSlices, Pacer, pause, restMs, type Steps, slicingOf } from '../base/clock.ts'
import { errorText } from '../base/errors.ts'
import { compareIps } from '../base/ip.ts'
import type { Config } from '../config/config.ts'
import { whyNotProvable } from '../config/modes.ts'
import type { AnyTable } from '../kernel/nft/state.ts'
import { whyUnforwarded } from '../kernel/sysctl/sysctls.ts'
import { isSame } from '../model/fields.ts'
import { isTraceTable } from '../modes/common/trace-table.ts'
import { findMode, MODE_DEVICE } from '../modes/registry.ts'
import { RunningProof } from '../proof/changes.ts'
import type { ProofDifference } from '../proof/examine.ts'
import { type OutsideHeld, readRules } from '../proof/kernel-rules.ts'
import type { Proof } from '../proof/prove.ts'
import type { ReconcilerEvent } from '../reconcile/pass.ts'
import type { KernelState } from '../source/source.ts'
import { packetsAsWanted, packetsDiffer } from '../telemetry/event.ts'
import type { HealthCheck } from '../telemetry/health.ts'
import type { HeldRules } from './mode-switcher.ts'
import type { DaemonProver, ProverOptions } from './optional-parts.ts'

/** Maximum share of a core that proofs take, at any time but for single steps. */
const SHARE = 0.1
/** A pass has just ended: the next one may begin at once. */
const SETTLE_MS = 20
/** Minimum time between two proofs, in which changes coalesce. */
const REST_MS = 1_000
/** Wait for the end of a pass. */
const PASS_MS = 20
/** Wait for a kernel that holds what is wanted. */
const UNSETTLED_MS = 500
const FAILED_MS = 30_000
/** Reads of the whole kernel state during which nothing may be committed. */
const READS_MAX = 3
/** Service ports that are logged, of those that differ together. */
const LOGGED_MAX = 10

/** The rules and the objects of one moment. */
interface Subject {
  readonly held: HeldRules
  readonly tables: readonly AnyTable[]
  readonly ipvs?: OutsideHeld | undefined
  /** Our own tables were read from the kernel, too. */
  readonly isRead: boolean
}

/** A time with differences. */
interface Episode {
  readonly sinceMs: number
  readonly first: ProofDifference
  readonly logged: Set<string>
}

/**
 * Proves while the daemon runs that the kernel does to every packet what Kubernetes says: everything after the start, after
 * repairs and every sync period; what changes in between at once (docs/decisions/0027). It changes nothing, and rests
 * between slices by its share of a core.
 */
export class Prover implements DaemonProver {
  readonly #options: ProverOptions
  readonly #pacer: Pacer
  readonly #ending = new AbortController()
  readonly #startedMs: number
  #running: { readonly config: Config; readonly proof: RunningProof } | undefined
  /** The tables of the last proof. */
  #tables: readonly AnyTable[] = []
  /** What was held then. */
  #held: HeldRules | undefined
  #wantsWhole = true
  /** Other programs may have changed their rules. */
  #wantsOthers = false
  #last: { readonly atMs: number; readonly classes: number } | undefined
  #episode: Episode | undefined
  #differences = 0
  /** Those that may differ, by rules that kprobe cannot follow, and the first such rule. */
  #unknown = 0
  #doubt = ''
  #forwarded: RunningProof['forwarded'] = []
  #workMs = 0
  /** Why the mode that programs the kernel now is not proved; empty where it is. */
  #idle = ''
  /** The failure that is in the log. */
  #failure = ''

  constructor(options: ProverOptions) {
    const { clock, metrics, health } = options
    this.#options = options
    this.#startedMs = clock.nowMs()
    this.#pacer = new Pacer({ clock, run: () => this.#run() })
    metrics.age(() => this.#ageMs / 1_000)
    health.advise(() => this.check)
  }

  /** Takes what the reconciler reports. A read of the kernel may have had another program as its reason. */
  report(event: ReconcilerEvent): void {
    if (event.kind === 'healed') this.#wantsWhole = true
    if (event.kind !== 'synced') return
    this.#wantsOthers ||= event.looked
    this.#wantsWhole ||= event.reason === 'period'
    this.#pacer.wake(SETTLE_MS)
  }

  /** Informs only: no status code follows from it. */
  get check(): HealthCheck {
    const [name, last] = ['proof', this.#last] as const
    if (this.#idle !== '') return { name, note: `nothing is proved: ${this.#idle}`, isAdvice: true }
    if (this.#failure !== '') return { name, failure: `cannot prove: ${this.#failure}`, isAdvice: true }
    if (last === undefined) return { name, note: 'nothing is proved yet', isAdvice: true }
    const age = `${last.classes} classes of packets, ${Math.round(this.#ageMs / 1_000)} s ago`
    const counts = [
      ...(this.#differences > 0 ? [`${this.#differences} differ`] : []),
      ...(this.#unknown > 0 ? [`${this.#unknown} may differ, by rules that kprobe cannot follow`] : []),
    ]
    counts.push(...this.#forwarded.flatMap(family => whyUnforwarded(family, this.#options.sysctls) ?? []))
    if (counts.length === 0) return { name, note: `everything was proved, ${age}`, isAdvice: true }
    return { name, failure: `${counts.join(', ')}; everything was followed, ${age}`, isAdvice: true }
  }

  /** The last proof, for relays; undefined before the first. */
  get last(): KernelState['proof'] {
    const { note, failure = note ?? '' } = this.check
    return this.#last === undefined ? undefined : { text: failure, differences: this.#differences }
  }

  async stop(): Promise<void> {
    this.#ending.abort()
    await this.#pacer.stop()
  }

  get #ageMs(): number {
    if (this.#idle !== '') return 0
    return this.#options.clock.nowMs() - (this.#last?.atMs ?? this.#startedMs)
  }

  async #run(): Promise<number | undefined> {
    const { log, metrics } = this.#options
    try {
      const config = await this.#prove()
      this.#failure = ''
      // A switch to another mode ends with a sync.
      if (this.#idle !== '') return undefined
      if (config === undefined) return UNSETTLED_MS
      this.#pacer.rest(REST_MS)
      return Math.max(0, config.syncPeriodMs - this.#ageMs)
    } catch (err) {
      if (this.#ending.signal.aborted) return undefined
      metrics.failed()
      const text = errorText(err)
      if (text !== this.#failure) log.warn({ err }, 'cannot prove the rules in the kernel; retrying')
      this.#failure = text
      this.#running = undefined
      this.#wantsWhole = true
      return FAILED_MS
    }
  }

  /** Gives the configuration of what was proved; undefined where that has to wait. */
  async #prove(): Promise<Config | undefined> {
    const held = this.#options.activeMode()?.held()
    if (held === undefined) return undefined
    const { config } = held
    const why = whyNotProvable(config) ?? ''
    if (why !== this.#idle) this.#setIdle(why)
    if (why !== '') return undefined
    this.#workMs = 0
    const isDue = this.#last !== undefined && this.#ageMs >= config.syncPeriodMs
    const isWhole = this.#options.prove === 'full' || this.#wantsWhole || isDue
    if (!isWhole && this.#running?.config === config) {
      const isProved = await this.#changes(this.#running.proof, held)
      if (isProved !== undefined) return isProved ? config : undefined
    }
    this.#wantsWhole = true
    // Two proofs at once would take twice the memory.
    this.#running = undefined
    this.#tables = []
    this.#held = undefined
    return (await this.#whole(config)) ? config : undefined
  }

  /** Stops at a switch to a mode that is not proved, and starts again at the next one. */
  #setIdle(why: string): void {
    const { log, metrics } = this.#options
    this.#idle = why
    if (why === '') {
      log.info('the daemon proves rules again')
      return
    }
    log.info({ why }, 'the daemon stops proving rules')
    this.#running = undefined
    this.#tables = []
    this.#held = undefined
    this.#last = undefined
    this.#episode = undefined
    this.#differences = 0
    this.#unknown = 0
    this.#wantsWhole = true
    metrics.differences({ wrong: 0, unknown: 0 })
  }

  /** Gives undefined where only a whole proof tells, and false where it has to wait. */
  async #changes(proof: RunningProof, held: HeldRules): Promise<boolean | undefined> {
    const { log, metrics } = this.#options
    const tables = this.#wantsOthers ? undefined : await this.#committed(held)
    const subject =
      tables === undefined ? await this.#read(held.tables, 'rules') : { held, tables, isRead: false }
    if (subject === undefined) return false
    // The mode was switched, or the configuration changed.
    if (subject.held.config !== held.config) return undefined
    const { snapshot, outsideSince } = subject.held
    const ipvs = this.#held && outsideSince?.(this.#held)
    if (outsideSince !== undefined && ipvs === undefined) return undefined
    const found = await this.#finish(proof.changes({ snapshot, tables: subject.tables, ipvs }))
    if (found.kind === 'whole') {
      log.debug({ why: found.why }, 'a whole proof follows the change')
      return undefined
    }
    this.#tables = subject.tables
    this.#held = subject.held
    metrics.proved('changes', { classes: found.proof.classes, durationMs: this.#workMs })
    this.#tell(found.proof, proof)
    return true
  }

  /** Gives the tables of the last proof with what was committed since; undefined where that is not known. */
  async #committed(held: HeldRules): Promise<readonly AnyTable[] | undefined> {
    if (held.tables !== undefined) return this.#knows(held.tables) ? this.#with(held.tables) : undefined
    const steps = this.#held && held.since?.(this.#held, this.#tables)
    return steps && (await this.#finish(steps))
  }

  /** Follows every packet. False where that has to wait. */
  async #whole(config: Config): Promise<boolean> {
    const { clock, log, metrics } = this.#options
    const subject = await this.#read(undefined, 'all')
    if (subject?.held.config !== config) {
      this.#wantsWhole = true
      return false
    }
    const { held, tables, ipvs, isRead } = subject
    const { proxyMode, serviceProxyName } = held.config
    const mode = findMode(proxyMode)
    const proving = mode.proving?.(held.config)
    const proof = new RunningProof({
      config: { ...held.config, ...(proving && { promises: proving.promises }) },
      ownName: mode.tableName(serviceProxyName) ?? '',
      owns: proving?.owns,
    })
    const { classes, ...found } = await this.#finish(proof.whole({ snapshot: held.snapshot, tables, ipvs }))
    this.#running = { config, proof }
    this.#tables = tables
    this.#held = held
    this.#last = { atMs: clock.nowMs(), classes }
    this.#forwarded = proof.forwarded
    metrics.proved('whole', { classes, durationMs: this.#workMs })
    this.#tell({ ...found, classes }, proof)
    const shared = isRead ? await this.#committed(held) : undefined
    if (shared === undefined) return true
    if (await this.#finish(proof.share(shared))) this.#tables = shared
    else {
      log.debug('the kernel does not hold what was committed; a whole proof follows the next change')
      this.#wantsWhole = true
    }
    return true
  }

  /** Reads what the kernel holds; of `own` tables, what was committed. Undefined while no pass leaves it alone. */
  async #read(own: readonly AnyTable[] | undefined, what: 'all' | 'rules'): Promise<Subject | undefined> {
    const { activeMode, metrics, log } = this.#options
    for (let tries = 1; own === undefined && tries <= READS_MAX; tries++) {
      const held = activeMode()?.held()
      if (held === undefined) return undefined
      // What happens from here on is not in this proof. A read of rules alone leaves out IPVS.
      if (what === 'all' || held.outsideSince === undefined) this.#wantsWhole = false
      const { tookMs, unsettled, ...read } = await this.#readOnce(undefined, { held, what })
      const isSteady =
        !unsettled && activeMode()?.held()?.passes === held.passes && hasAddressesOf(held, read.ipvs)
      await this.#rest(tookMs)
      if (isSteady) return { held, ...read, isRead: true }
      metrics.readDiscarded()
    }
    const held = activeMode()?.held()
    if (held?.tables === undefined) {
      // No read of other programs' rules counted.
      this.#wantsOthers = true
      return undefined
    }
    if (own === undefined)
      log.debug('the kernel changed during each read; proving the committed state instead')
    if (own === undefined) this.#wantsWhole = false
    const { tables, unsettled, tookMs } = await this.#readOnce(held.tables, { held, what })
    await this.#rest(tookMs)
    if (unsettled) {
      metrics.readDiscarded()
      this.#wantsOthers = true
      return undefined
    }
    return { held, tables, isRead: false }
  }

  async #readOnce(
    own: readonly AnyTable[] | undefined,
    { held: { config }, what }: { readonly held: HeldRules; readonly what: 'all' | 'rules' },
  ) {
    const { clock, sockets } = this.#options
    const beganMs = clock.nowMs()
    this.#wantsOthers = false
    const usesIpsets = findMode(config.proxyMode).proving?.(config).usesIpvs === true
    try {
      const known = (table: TableName) => own?.find(each => isSameName(each, table))
      const { tables, ipvs, unsettled } = await readRules({
        sockets,
        clock,
        usesIpsets,
        usesIpvs: usesIpsets && what === 'all',
        device: MODE_DEVICE,
        attemptsMax: 1,
        known,
        isPassing: isTraceTable,
      })
      return { tables, ipvs, unsettled, tookMs: clock.nowMs() - beganMs }
    } catch (error) {
      this.#wantsOthers = true
      throw error
    }
  }

  #knows(own: readonly AnyTable[]): boolean {
    return own.every(table => this.#tables.some(each => isSameName(each, table)))
  }

  /** Gives the tables of the last proof with other versions of our own. */
  #with(own: readonly AnyTable[]): readonly AnyTable[] {
    return this.#tables.map(table => own.find(each => isSameName(each, table)) ?? table)
  }

  /** Runs to the end in slices. Passes have priority. Throws when the daemon ends. */
  async #finish<T>(steps: Steps<T>): Promise<T> {
    const { clock, activeMode } = this.#options
    let beganMs = clock.nowMs()
    const rest = () => this.#rest(clock.nowMs() - beganMs)
    const breathe = async () => {
      await rest()
      while (activeMode()?.isPassing === true) await this.#pause(PASS_MS)
      beganMs = clock.nowMs()
    }
    const value = await finishInSlices(steps, { ...slicingOf(clock), breathe })
    await rest()
    return value
  }

  async #rest(tookMs: number): Promise<void> {
    this.#workMs += tookMs
    await this.#pause(restMs(tookMs, SHARE))
  }

  async #pause(ms: number): Promise<void> {
    const { signal } = this.#ending
    await pause(this.#options.clock, ms, signal)
    if (signal.aborted) throw new Error('the daemon ends')
  }

  #tell({ differences, unknowns }: Proof, { wrong: { size: wrong }, unknown }: RunningProof): void {
    const { clock, log, nodeName, tell, metrics } = this.#options
    metrics.differences({ wrong, unknown })
    this.#differences = wrong
    this.#unknown = unknown
    this.#logDoubt(unknowns[0])
    const [first] = differences
    if (first === undefined) {
      if (wrong === 0) this.#endEpisode()
      return
    }
    const episode = this.#episode ?? { sinceMs: clock.nowMs(), first, logged: new Set<string>() }
    if (this.#episode === undefined) tell(packetsDiffer(nodeName, first))
    this.#episode = episode
    for (const { name, packet, expected, kernel, rule } of differences) {
      if (episode.logged.has(name) || episode.logged.size >= LOGGED_MAX) continue
      episode.logged.add(name)
      log.warn(
        { name, packet, kubernetes: expected, kernel, ...(rule === undefined ? {} : { rule }) },
        'the kernel does not treat packets as Kubernetes says; `kprobe verify --prove` lists all',
      )
    }
  }

  #logDoubt(its: ProofDifference | undefined): void {
    if (this.#unknown === 0) this.#doubt = ''
    if (its?.doubt === undefined || this.#doubt !== '') return
    this.#doubt = its.doubt
    const { name, packet, doubt } = its
    this.#options.log.info(
      { name, packet, doubt, places: this.#unknown },
      'rules of other programs, which kprobe cannot follow, may decide about packets of Services; `kprobe verify --prove` lists them',
    )
  }

  #endEpisode(): void {
    if (this.#episode === undefined) return
    const { clock, log, nodeName, tell } = this.#options
    const { sinceMs, first } = this.#episode
    const seconds = Math.round((clock.nowMs() - sinceMs) / 1_000)
    log.info({ seconds }, 'the kernel treats every packet as Kubernetes says again')
    tell(packetsAsWanted(nodeName, first))
    this.#episode = undefined
  }
}

/** The meaning follows from the addresses that the daemon knows: those of the kernel may have changed since. */
function hasAddressesOf({ snapshot }: HeldRules, outside: OutsideHeld | undefined): boolean {
  return outside === undefined || isSame(outside.ownAddresses.toSorted(compareIps), snapshot.localIps)
}

type TableName = Pick<AnyTable, 'family' | 'name'>

function isSameName(a: TableName, b: TableName): boolean {
  return a.family === b.family && a.name === b.name
}
