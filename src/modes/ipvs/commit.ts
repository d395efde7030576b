import { type Clock, slicingOf } from '../../base/clock.ts'
import { type Family, familyOf, isLinkLocal } from '../../base/ip.ts'
import type { Growth } from '../../kernel/ipset/grow.ts'
import type { GroupedEntries, IpsetOperation } from '../../kernel/ipset/state.ts'
import { meetsOtherServers } from '../../kernel/ipvs/refusals.ts'
import type { IpvsOperation } from '../../kernel/ipvs/state.ts'
import type { CommitResult } from '../../kernel/nft/client.ts'
import type { Transaction } from '../../kernel/nft/transaction.ts'
import type { RuleCodec } from '../../kernel/xt/compile.ts'
import type { ScopeOperations } from '../../kernel/xt/scope.ts'
import { commitScope } from '../../kernel/xt/scope-commit.ts'
import type { ServiceKey } from '../../model/service.ts'
import type { Answers } from '../../netlink/connection.ts'
import { OutcomeUnknownError } from '../../netlink/errors.ts'
import { isNetlinkFailure } from '../../netlink/transport.ts'
import type { KernelRefusal, Receipt } from '../../reconcile/dataplane.ts'
import { DUMMY_DEVICE } from '../common/kube-proxy.ts'
import { serviceOfGroup } from '../common/tables.ts'
import { refusalOf, refusalTo } from '../common/transaction-plan.ts'
import { type Failure, familyRefusal } from './families.ts'
import { familyOfSet } from './layout.ts'
import type { IpvsKernel } from './observe.ts'
import { PHASE_ORDER, type Phase, type SetChange, servicesOf } from './plan.ts'

interface CommitterOptions {
  readonly kernel: IpvsKernel
  readonly clock: Clock
  /** The generation of nf_tables at which a batch is accepted; undefined for any. */
  readonly generation: number | undefined
  /** Compiles rules in the tables of iptables. */
  readonly codec: RuleCodec
  /** Schedulers that this kernel is known to lack. Services that need one of them are refused. */
  readonly missingSchedulers: ReadonlySet<string>
  /** Ends a commit as `stale` where the kernel holds other servers than were read; else only their Services fail. */
  readonly rereadsServers: boolean
}

/** A Receipt whose generation is that of nf_tables. */
export interface Committed extends Omit<Receipt, 'durationMs' | 'generation'> {
  readonly generation: number
  /** Schedulers that the kernel turned out to lack. The outcome is then `stale`: render again without them. */
  readonly schedulers: ReadonlySet<string>
}

interface Step {
  readonly bytes: number
  readonly messages: number
  readonly ending?: 'stale' | 'unknown' | undefined
  readonly refusals: readonly KernelRefusal[]
}

const NOTHING: Step = { bytes: 0, messages: 0, refusals: [] }

/** Errors for a set that our rules referred to until now: nf_tables releases it asynchronously after the commit. */
const IN_USE: ReadonlySet<string> = new Set(['IPSET_ERR_BUSY', 'IPSET_ERR_REFERENCED', 'EBUSY'])
const DESTROY_ATTEMPTS = 8

/**
 * Sends the phases of a plan. Each depends on the phases before it. A Service that one phase failed for is
 * skipped in the next phases. When shared objects cannot be added, or any object cannot be removed, the
 * commit stops.
 */
export class Committer {
  readonly #options: CommitterOptions
  #generation: number | undefined
  #bytes = 0
  #messages = 0
  #foreign = false
  readonly #refusals: KernelRefusal[] = []
  /** The Services that the next phases skip. */
  readonly #failed = new Set<ServiceKey>()
  readonly #schedulers = new Set<string>()

  constructor(options: CommitterOptions) {
    this.#options = options
    this.#generation = options.generation
  }

  async run(phases: readonly Phase[]): Promise<Committed> {
    const start = await this.#options.kernel.nft.commit([])
    this.#foreign = start.foreign
    if (this.#generation !== undefined && this.#generation !== start.generation)
      return this.#committed('stale', start.generation)
    let ending: Step['ending']
    for (const phase of phases) {
      const step = await this.#attempt(phase)
      this.#account(step)
      ending = step.ending
      if (ending !== undefined || mustStop(phase, step)) break
    }
    const end = await this.#options.kernel.nft.commit([])
    this.#foreign ||= end.foreign
    return this.#committed(ending ?? this.#outcome(), end.generation)
  }

  #committed(outcome: Receipt['outcome'], generation: number): Committed {
    return {
      outcome,
      generation,
      foreign: this.#foreign,
      refusals: outcome === 'refused' ? this.#refusals : [],
      partial: outcome === 'refused' || (outcome === 'stale' && this.#messages > 0),
      bytes: this.#bytes,
      messages: this.#messages,
      schedulers: this.#schedulers,
    }
  }

  #outcome(): Receipt['outcome'] {
    if (this.#schedulers.size > 0) return 'stale'
    return this.#refusals.length > 0 ? 'refused' : 'committed'
  }

  #account({ bytes, messages, refusals }: Step): void {
    this.#bytes += bytes
    this.#messages += messages
    for (const refusal of refusals) this.#refuse(refusal)
  }

  /** Records a refusal, unless it follows from an earlier failure of the same Service. */
  #refuse(refusal: KernelRefusal): void {
    const { services } = refusal
    const isNews = services.length === 0 || services.some(service => !this.#failed.has(service))
    for (const service of services) this.#failed.add(service)
    if (isNews) this.#refusals.push(refusal)
  }

  async #attempt(phase: Phase): Promise<Step> {
    try {
      return await this.#perform(phase)
    } catch (error) {
      if (!isNetlinkFailure(error)) throw error
      if (error instanceof OutcomeUnknownError) return { ...NOTHING, ending: 'unknown' }
      return { ...NOTHING, refusals: [{ services: [], error }] }
    }
  }

  #perform(phase: Phase): Promise<Step> | Step {
    if ('sets' in phase) return this.#changeSets(phase.sets)
    if ('names' in phase) return this.#destroySets(phase.names)
    if ('lists' in phase) return this.#changeEntries(phase)
    if ('transaction' in phase) {
      const isRedirects = phase.kind === 'add-redirects'
      return this.#changeRules(isRedirects ? this.#unfailedOf(phase.transaction) : phase.transaction)
    }
    if ('nameOfIpset' in phase) return this.#changeChains(phase.operations)
    if ('operations' in phase) return this.#changeServers(phase.operations)
    if ('addresses' in phase) return this.#changeAddresses(phase)
    if (phase.kind === 'remove-device') return this.#removeDevice()
    this.#options.kernel.dummy.ensure(DUMMY_DEVICE)
    return { ...NOTHING, messages: 1 }
  }

  async #changeSets(sets: readonly SetChange[]): Promise<Step> {
    const create = sets.flatMap(({ set, replaces }): readonly IpsetOperation[] =>
      replaces === undefined ? [{ verb: 'create', set }] : [],
    )
    let step = create.length === 0 ? NOTHING : await this.#sendSets(create)
    for (const { replaces } of sets) {
      if (step.refusals.length > 0 || step.ending !== undefined) break
      if (replaces !== undefined) step = joined(step, await this.#grow(replaces.growth))
    }
    return step
  }

  async #grow({ build, replace, abandon }: Growth): Promise<Step> {
    const built = await this.#sendSets(build)
    if (built.ending !== undefined) return built
    if (built.refusals.length === 0) return joined(built, await this.#sendSets(replace))
    // The next full resync finds the rest anyway.
    const abandoned = await this.#sendSets(abandon)
    return { ...joined(built, abandoned), refusals: built.refusals }
  }

  async #sendSets(operations: readonly IpsetOperation[]): Promise<Step> {
    return stepOf(await this.#options.kernel.ipset.commit(operations), familyOfIpset)
  }

  async #changeEntries({ kind, lists }: Extract<Phase, { readonly lists: unknown }>): Promise<Step> {
    const verb = kind === 'add-entries' ? kind : ('delete-entries' as const)
    const operations = lists
      .map(list => this.#unfailed(list))
      .filter(({ entries }) => entries.length > 0)
      .map(list => ({ verb, ...list }))
    if (operations.length === 0) return NOTHING
    const result = await this.#options.kernel.ipset.commit(operations)
    return stepOf(result, familyOfIpset, ({ entries }) => entries.flatMap(({ group }) => servicesOf(group)))
  }

  #unfailed(list: GroupedEntries): GroupedEntries {
    if (this.#failed.size === 0) return list
    const keeps = (_: unknown, i: number): boolean => !this.#areFailed(servicesOf(list.groups[i] ?? ''))
    return { ...list, entries: list.entries.filter(keeps), groups: list.groups.filter(keeps) }
  }

  /** Tests whether all users of an object failed. An object that another Service needs is not skipped. */
  #areFailed(services: readonly ServiceKey[]): boolean {
    return services.length > 0 && services.every(service => this.#failed.has(service))
  }

  /** Removes the redirects of failed Services, which would lead to missing objects. */
  #unfailedOf(transaction: Transaction): Transaction {
    if (this.#failed.size === 0) return transaction
    return transaction.flatMap((operation): Transaction => {
      if (operation.verb !== 'add-elements' && operation.verb !== 'delete-elements') return [operation]
      const keeps = (_: unknown, i: number): boolean =>
        !this.#failed.has(serviceOfGroup(operation.groups[i] ?? '') ?? '')
      const elements = operation.elements.filter(keeps)
      return elements.length === 0 ? [] : [{ ...operation, elements, groups: operation.groups.filter(keeps) }]
    })
  }

  async #changeRules(transaction: Transaction): Promise<Step> {
    if (transaction.length === 0) return NOTHING
    const { nft } = this.#options.kernel
    const guard = this.#generation === undefined ? {} : { generation: this.#generation }
    const result = await nft.commit(transaction, guard)
    return this.#follow(result, result.failures.map(refusalOf))
  }

  async #changeChains(operations: ScopeOperations): Promise<Step> {
    const { kernel, codec, clock } = this.#options
    const result = await commitScope(operations, {
      client: kernel.nft,
      codec,
      slicing: slicingOf(clock),
      generation: this.#generation,
    })
    const refusals = result.failures.map(failure => refusalTo([], failure, failure.operation?.family))
    return this.#follow(result, refusals)
  }

  /** Continues from the generation that a batch of nf_tables reached. */
  #follow(result: Omit<CommitResult, 'failures' | 'durationMs'>, refusals: readonly KernelRefusal[]): Step {
    const { outcome, bytes, messages } = result
    this.#foreign ||= result.foreign
    if (this.#generation !== undefined) this.#generation = result.generation
    if (outcome === 'stale' || outcome === 'unknown')
      return { bytes, messages, refusals: [], ending: outcome }
    return { bytes, messages, refusals }
  }

  /** Removes the device. A link-local address that the kernel added to a device that is up does not keep it. */
  async #removeDevice(): Promise<Step> {
    const { dummy } = this.#options.kernel
    const addresses = await dummy.addresses(DUMMY_DEVICE)
    if (addresses === undefined || !addresses.every(ip => ip.length === 16 && isLinkLocal(ip))) return NOTHING
    dummy.remove(DUMMY_DEVICE)
    return { ...NOTHING, messages: 1 }
  }

  async #changeServers(given: readonly IpvsOperation[]): Promise<Step> {
    const operations = given.filter(({ group }) => !this.#areFailed(servicesOf(group)))
    if (operations.length === 0) return NOTHING
    const result = await this.#options.kernel.ipvs.commit(operations)
    for (const { operation, code } of result.failures) {
      if (operation.verb !== 'set-server' || code !== 'ENOENT') continue
      const { scheduler } = operation.server
      if (!this.#options.missingSchedulers.has(scheduler)) this.#schedulers.add(scheduler)
    }
    const step = stepOf(
      result,
      ({ operation }) => familyOf(operation.server.ip),
      ({ operation }) => servicesOf(operation.group),
    )
    // Another program changed servers since the read: the next plan is made of what the kernel holds.
    const isStale = this.#options.rereadsServers && meetsOtherServers(result.failures)
    return isStale ? { ...step, refusals: [], ending: 'stale' } : step
  }

  async #changeAddresses(phase: Extract<Phase, { readonly addresses: unknown }>): Promise<Step> {
    const addresses = phase.addresses.filter(({ services }) => !this.#areFailed(services))
    if (addresses.length === 0) return NOTHING
    const ips = addresses.map(({ ip }) => ip)
    const isAddition = phase.kind === 'add-addresses'
    const changes = isAddition ? { add: ips, remove: [] } : { add: [], remove: ips }
    const result = await this.#options.kernel.dummy.commit(DUMMY_DEVICE, changes)
    return stepOf(
      result,
      ({ ip }) => familyOf(ip),
      failure => addresses.find(({ ip }) => ip === failure.ip)?.services ?? [],
    )
  }

  async #destroySets(names: readonly string[]): Promise<Step> {
    let [bytes, messages] = [0, 0]
    let left = names
    for (let attempt = 1; ; attempt++) {
      const result = await this.#options.kernel.ipset.commit(left.map(name => ({ verb: 'destroy', name })))
      bytes += result.bytes
      messages += result.messages
      const busy = result.failures.flatMap(({ operation, code }) =>
        operation.verb === 'destroy' && IN_USE.has(code) ? [operation.name] : [],
      )
      const isLast = attempt === DESTROY_ATTEMPTS || busy.length === 0 || result.unknown !== undefined
      if (isLast) return { ...stepOf(result, familyOfIpset), bytes, messages }
      left = busy
      // 10 ms more after each attempt: see IN_USE.
      await new Promise<void>(resolve => this.#options.clock.after(10 * attempt, resolve))
    }
  }
}

function joined(a: Step, b: Step): Step {
  return {
    ...a,
    ...b,
    bytes: a.bytes + b.bytes,
    messages: a.messages + b.messages,
    refusals: [...a.refusals, ...b.refusals],
  }
}

/** Refusals in removals, of shared objects and in batches of nf_tables, which are atomic, stop the commit for all Services. */
function mustStop({ kind }: Phase, { refusals }: Step): boolean {
  if (refusals.length === 0) return false
  const isAddition = PHASE_ORDER.indexOf(kind) < PHASE_ORDER.indexOf('remove-redirects')
  return (
    !isAddition ||
    kind === 'add-rules' ||
    kind === 'add-redirects' ||
    refusals.some(({ services }) => services.length === 0)
  )
}

function familyOfIpset({ operation }: { readonly operation: IpsetOperation }): Family {
  return familyOfSet('set' in operation ? operation.set.name : operation.name)
}

function stepOf<F extends Failure>(
  { unknown, failures, bytes, messages }: Answers<F>,
  family: (failure: F) => Family,
  servicesIn: (failure: F) => readonly ServiceKey[] = () => [],
): Step {
  const refusals = failures.map(
    failure =>
      familyRefusal(failure, family(failure)) ?? {
        services: [...new Set(servicesIn(failure))],
        error: failure.error,
      },
  )
  return { bytes, messages, refusals, ending: unknown === undefined ? undefined : 'unknown' }
}
