import { Pacer, pause, restMs, Slice, slicingOf } from '../base/clock.ts'
import { errorText } from '../base/errors.ts'
import { compareIps, type Family } from '../base/ip.ts'
import { isSame } from '../base/plain-data.ts'
import type { Config } from '../config/config.ts'
import { whyNotProvable } from '../config/modes.ts'
import type { HeldRules } from '../daemon/active-mode.ts'
import type { DaemonProver, ProverOptions } from '../daemon/optional-parts.ts'
import type { AnyTable } from '../kernel/nft/state.ts'
import { whyUnforwarded } from '../kernel/sysctl/sysctls.ts'
import { isTraceTable } from '../modes/common/trace-table.ts'
import { findMode, MODE_DEVICE } from '../modes/registry.ts'
import type { ReconcilerEvent } from '../reconcile/pass.ts'
import type { KernelState } from '../source/source.ts'
import { packetsAsWanted, packetsDiffer } from '../telemetry/event.ts'
import type { HealthCheck } from '../telemetry/health.ts'
import type { ProofDifference } from './examine.ts'
import { type OutsideHeld, readRules } from './kernel-rules.ts'
import { MeaningDraft } from './meanings.ts'
import { forwardedFamilies } from './premises.ts'
import { type Proof, ProofRun } from './prove.ts'

/** Maximum share of a core that proofs take, at any time but for single steps. */
const PROOF_PACE = { share: 0.1 } as const
/** Wait for a kernel that holds what is wanted. */
const UNSETTLED_MS = 500

interface Subject extends Moment {
  readonly held: HeldRules
  readonly tables: readonly AnyTable[]
  readonly ipvs?: OutsideHeld | undefined
}

interface Moment {
  readonly atMs: number
  readonly repairs: number
}

interface Proved extends Moment, Pick<Proof, 'classes' | 'destinations'> {
  readonly config: Config
  /** The families in which this node has to forward packets. */
  readonly forwarded: readonly Family[]
}

interface Episode {
  readonly sinceMs: number
  readonly first: ProofDifference
  readonly logged: Set<string>
}

/**
 * Proves while the daemon runs that the kernel treats every packet as Kubernetes specifies: after the start, a switch of the
 * mode or of the configuration, and a repair, and once a sync period (docs/decisions/0027). It changes nothing, and rests
 * between slices by its share of a core.
 */
export class Prover implements DaemonProver {
  readonly #options: ProverOptions
  readonly #pacer: Pacer
  readonly #ending = new AbortController()
  /** Proofs are due since then: since the start, or the switch to a mode that is proved. */
  #provesSinceMs: number
  #proved: Proved | undefined
  #repairs = 0
  #episode: Episode | undefined
  /** The first rule that kprobe cannot follow; empty where packets meet none. */
  #doubt = ''
  /** The reason for which the present mode is not proved; empty where it is. */
  #idle = ''
  #failure = ''
  /** Time that the current proof ran, without its rests. */
  #workMs = 0
  #beganMs = 0

  constructor(options: ProverOptions) {
    const { clock, health } = options
    this.#options = options
    this.#provesSinceMs = clock.nowMs()
    this.#pacer = new Pacer({ clock, run: () => this.#run() })
    health.advise(() => this.check)
  }

  report(event: ReconcilerEvent): void {
    if (event.kind === 'repaired') this.#repairs++
    // A pass has just ended: the next one may begin at once.
    if (event.kind === 'synced') this.#pacer.wake(20)
  }

  /** Informs only: no status code follows from it. */
  get check(): HealthCheck {
    const [name, last] = ['proof', this.#proved] as const
    if (this.#idle !== '') return { name, note: `nothing is proved: ${this.#idle}`, isAdvice: true }
    if (this.#failure !== '') return { name, failure: `cannot prove: ${this.#failure}`, isAdvice: true }
    if (last === undefined) return { name, note: 'nothing is proved yet', isAdvice: true }
    const age = `${last.classes} classes of packets, ${Math.round(this.#ageMs / 1_000)} s ago`
    const { wrong, unknown } = last.destinations
    const counts = [
      ...(wrong > 0 ? [`${wrong} differ`] : []),
      ...(unknown > 0 ? [`${unknown} may differ, by rules that kprobe cannot follow`] : []),
      ...last.forwarded.flatMap(family => whyUnforwarded(family, this.#options.sysctls) ?? []),
    ]
    if (counts.length === 0) return { name, note: `everything was proved, ${age}`, isAdvice: true }
    return { name, failure: `${counts.join(', ')}; everything was followed, ${age}`, isAdvice: true }
  }

  /** The last proof, for relays; undefined before the first. */
  get last(): KernelState['proof'] {
    if (this.#proved === undefined) return undefined
    const { note, failure = note ?? '' } = this.check
    return { text: failure, differences: this.#proved.destinations.wrong }
  }

  get ageS(): number {
    return this.#ageMs / 1_000
  }

  async stop(): Promise<void> {
    this.#ending.abort()
    await this.#pacer.stop()
  }

  get #ageMs(): number {
    if (this.#idle !== '') return 0
    return this.#options.clock.nowMs() - (this.#proved?.atMs ?? this.#provesSinceMs)
  }

  /** Proves if a proof is due. Gives the time until the next run; undefined for the next sync. */
  async #run(): Promise<number | undefined> {
    const { activeMode, log, metrics } = this.#options
    const config = activeMode()?.held()?.config
    if (config === undefined) return UNSETTLED_MS
    this.#setIdle(whyNotProvable(config) ?? '')
    // A switch to another mode ends with a sync.
    if (this.#idle !== '') return undefined
    try {
      if (this.#isDue(config) && !(await this.#prove(config))) return UNSETTLED_MS
      this.#failure = ''
      // Minimum time between two proofs, in which repairs coalesce.
      this.#pacer.rest(1_000)
      return this.#isDue(config) ? 0 : config.syncPeriodMs - this.#ageMs
    } catch (err) {
      if (this.#ending.signal.aborted) return undefined
      metrics.kprobe_proof_failures_total.inc()
      const text = errorText(err)
      if (text !== this.#failure) log.warn({ err }, 'cannot prove the rules in the kernel; retrying')
      this.#failure = text
      // A read that fails is no difference: again in 30 s.
      return 30_000
    }
  }

  #isDue(config: Config): boolean {
    const { config: before, repairs } = this.#proved ?? {}
    return before !== config || repairs !== this.#repairs || this.#ageMs >= config.syncPeriodMs
  }

  /** Stops at a switch to a mode that is not proved, and starts again at the next one. */
  #setIdle(why: string): void {
    if (why === this.#idle) return
    const { clock, log, metrics } = this.#options
    this.#idle = why
    if (why === '') {
      this.#provesSinceMs = clock.nowMs()
      log.info('the daemon proves rules again')
      return
    }
    log.info({ why }, 'the daemon stops proving rules')
    this.#proved = undefined
    this.#episode = undefined
    this.#doubt = ''
    metrics.kprobe_proof_differences.set(0)
    metrics.kprobe_proof_unknown.set(0)
  }

  /** Follows every packet. Returns false where that has to wait. */
  async #prove(config: Config): Promise<boolean> {
    const { metrics } = this.#options
    this.#workMs = 0
    const subject = await this.#read()
    // The mode was switched, or the configuration changed.
    if (subject?.held.config !== config) return false
    const { held, tables, ipvs, atMs, repairs } = subject
    const mode = findMode(config.proxyMode)
    const proving = mode.proving?.(config)
    const meaning = { ...config, ...(proving && { promises: proving.promises }) }
    const draft = new MeaningDraft(held.snapshot, meaning)
    await this.#paced(draft.services, service => draft.add(service))
    const meanings = draft.settled()
    const ownName = mode.tableName(config.serviceProxyName) ?? ''
    const run = new ProofRun({ meanings, tables, ownName, owns: proving?.owns, ipvs })
    await this.#paced(run.classes())
    const { proof } = run
    const { classes, destinations } = proof
    this.#proved = { atMs, repairs, config, classes, destinations, forwarded: forwardedFamilies(meanings) }
    metrics.kprobe_proof_duration_seconds.observe(this.#workMs / 1000)
    metrics.kprobe_proof_classes.set(classes)
    this.#tell(proof)
    return true
  }

  /** Reads what the kernel holds; undefined while no pass leaves it alone. */
  async #read(): Promise<Subject | undefined> {
    const { activeMode, metrics, log } = this.#options
    // Reads of the whole kernel state during which nothing may be committed.
    for (let tries = 1; tries <= 3; tries++) {
      const held = activeMode()?.held()
      if (held === undefined) return undefined
      const { unsettled, ...read } = await this.#readOnce(held)
      if (!unsettled && activeMode()?.held()?.passes === held.passes && hasAddressesOf(held, read.ipvs))
        return { held, ...read }
      metrics.kprobe_proof_reads_discarded_total.inc()
    }
    const held = activeMode()?.held()
    if (held?.tables === undefined) return undefined
    log.debug('the kernel changed during each read; proving the committed state instead')
    const { unsettled, ...read } = await this.#readOnce(held, held.tables)
    if (!unsettled) return { held, ...read }
    metrics.kprobe_proof_reads_discarded_total.inc()
    return undefined
  }

  /** Reads the rules of all programs; of `own` tables, takes what was committed. */
  async #readOnce({ config }: HeldRules, own: readonly AnyTable[] = []) {
    const { clock, sockets } = this.#options
    const moment: Moment = { atMs: clock.nowMs(), repairs: this.#repairs }
    this.#beganMs = moment.atMs
    const usesIpvs = findMode(config.proxyMode).proving?.(config)?.usesIpvs === true
    try {
      const { tables, ipvs, unsettled } = await readRules({
        sockets,
        clock,
        usesIpvs,
        device: MODE_DEVICE,
        attemptsMax: 1,
        known: ({ family, name }) => own.find(its => its.family === family && its.name === name),
        isPassing: isTraceTable,
      })
      return { ...moment, tables, ipvs, unsettled }
    } finally {
      await this.#rest()
    }
  }

  /** Takes all items, in slices. Passes have priority. Throws when the daemon ends. */
  async #paced<T>(items: Iterable<T>, take?: (item: T) => void): Promise<void> {
    const { clock, activeMode } = this.#options
    const breathe = async () => {
      await this.#rest()
      // Wait for the end of a pass.
      while (activeMode()?.isPassing === true) await this.#pause(20)
      this.#beganMs = clock.nowMs()
    }
    const slice = new Slice({ ...slicingOf(clock), breathe })
    for (const item of items) {
      take?.(item)
      if (slice.isOver) await slice.next()
    }
    await this.#rest()
  }

  async #rest(): Promise<void> {
    const { clock } = this.#options
    const tookMs = clock.nowMs() - this.#beganMs
    this.#workMs += tookMs
    await this.#pause(restMs(tookMs, PROOF_PACE))
    this.#beganMs = clock.nowMs()
  }

  async #pause(ms: number): Promise<void> {
    const { signal } = this.#ending
    await pause(this.#options.clock, ms, signal)
    if (signal.aborted) throw new Error('the daemon ends')
  }

  #tell({ differences, unknowns, destinations }: Proof): void {
    const { clock, log, nodeName, tell, metrics } = this.#options
    metrics.kprobe_proof_differences.set(destinations.wrong)
    metrics.kprobe_proof_unknown.set(destinations.unknown)
    this.#logDoubt(unknowns[0], destinations.unknown)
    const [first] = differences
    if (first === undefined) {
      this.#endEpisode()
      return
    }
    const episode = this.#episode ?? { sinceMs: clock.nowMs(), first, logged: new Set<string>() }
    if (this.#episode === undefined) tell(packetsDiffer(nodeName, first))
    this.#episode = episode
    for (const { name, packet, expected, kernel, rule } of differences) {
      // Service ports that are logged, of those that differ together.
      if (episode.logged.has(name) || episode.logged.size >= 10) continue
      episode.logged.add(name)
      log.warn(
        { name, packet, kubernetes: expected, kernel, ...(rule === undefined ? {} : { rule }) },
        'the kernel treats packets differently from what Kubernetes specifies; `kprobe verify --prove` lists all',
      )
    }
  }

  /** Logs the first rule that kprobe cannot follow, once until packets meet none. */
  #logDoubt(its: ProofDifference | undefined, places: number): void {
    const before = this.#doubt
    this.#doubt = its?.doubt ?? ''
    if (its === undefined || before !== '') return
    const { name, packet, doubt } = its
    this.#options.log.info(
      { name, packet, doubt, places },
      'rules of other programs, which kprobe cannot follow, may decide about packets of Services; `kprobe verify --prove` lists them',
    )
  }

  #endEpisode(): void {
    if (this.#episode === undefined) return
    const { clock, log, nodeName, tell } = this.#options
    const { sinceMs, first } = this.#episode
    const seconds = Math.round((clock.nowMs() - sinceMs) / 1_000)
    log.info({ seconds }, 'the kernel treats every packet as Kubernetes specifies again')
    tell(packetsAsWanted(nodeName, first))
    this.#episode = undefined
  }
}

/** The meaning follows from the addresses that the daemon knows: those of the kernel may have changed since. */
function hasAddressesOf({ snapshot }: HeldRules, outside: OutsideHeld | undefined): boolean {
  return outside === undefined || isSame(outside.ownAddresses.toSorted(compareIps), snapshot.localIps)
}
