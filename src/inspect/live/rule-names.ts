import type { Clock } from '../../base/clock.ts'
import { formatIpPort, type Ip } from '../../base/ip.ts'
import type { PacketHead } from '../../base/ip-packet.ts'
import { openNetfilter, openRoute } from '../../daemon/open.ts'
import { findTracked, type Tracked } from '../../kernel/conntrack/record.ts'
import { findLink, listAddressesNow } from '../../kernel/link/links.ts'
import { generationReader } from '../../kernel/nft/dump.ts'
import { type HandledRule, listHandles } from '../../kernel/nft/list.ts'
import { formatVerdict } from '../../kernel/nft/print-data.ts'
import { formatRule } from '../../kernel/nft/print-rule.ts'
import { isHookFamily, type NftSet, type Table, type Verdict } from '../../kernel/nft/state.ts'
import { printRule } from '../../kernel/xt/print.ts'
import { readRule } from '../../kernel/xt/read.ts'
import type { PodNames } from '../../model/pod-names.ts'
import type { HeldMode } from '../../modes/mode.ts'
import { MODES } from '../../modes/registry.ts'
import { chainNames, isIpvsChain, isOurChain } from '../../modes/xt-common/layout.ts'
import { XT_TABLES } from '../../modes/xt-common/read-chains.ts'
import { Connection } from '../../netlink/connection.ts'
import type { Trace, Tracer, TraceStep } from '../../proof/evaluate/trace.ts'
import { askPods } from '../admin-client.ts'
import { lazyTracer } from '../tracer.ts'
import type { PacketStep, TracedPacket } from './packet-collector.ts'
import { type NamedStep, ServiceIndex } from './packet-story.ts'

interface RuleNamesOptions {
  readonly clock: Clock
  readonly proxy: string | undefined
  readonly read: () => Promise<readonly HeldMode[]>
  /** The admin socket of the daemon, which knows the Pods of endpoints. */
  readonly socket: string
}

/** Gives words for the rules that real packets meet: of kprobe as `explain` does, and of other programs. */
export class RuleNames {
  readonly #options: RuleNamesOptions
  readonly #connection: Connection
  readonly #route: Connection
  readonly #chains = new Map<string, readonly HandledRule[]>()
  #chainsGeneration: number | undefined
  readonly #readGeneration: () => number
  readonly #links = new Map<number, string>()
  #held: readonly HeldMode[] = []
  #pods: PodNames = () => undefined
  #tracers: readonly Tracer[] = []
  #readAtMs = Number.NEGATIVE_INFINITY
  #generation: number | undefined
  #localIps: ReadonlySet<Ip> = new Set()
  #services = new ServiceIndex([], new Set())

  constructor(options: RuleNamesOptions) {
    const { clock } = options
    this.#options = options
    this.#connection = new Connection({ transport: openNetfilter(), clock })
    this.#route = new Connection({ transport: openRoute(), clock })
    this.#readGeneration = generationReader(this.#connection)
  }

  async load(): Promise<readonly HeldMode[]> {
    this.#generation = this.#readGeneration()
    this.#chains.clear()
    this.#held = await this.#options.read()
    this.#pods = await askPods(this.#options.socket)
    this.#tracers = this.#held.map(({ rules }) => lazyTracer(rules.traced))
    this.#readAtMs = this.#options.clock.nowMs()
    this.#localIps = new Set([
      ...(listAddressesNow(this.#route) ?? []).map(({ ip }) => ip),
      ...this.#held.flatMap(({ rules }) => [...rules.localIps]),
    ])
    this.#services = new ServiceIndex(
      this.#held.flatMap(({ rows }) => rows),
      this.#localIps,
    )
    return this.#held
  }

  /** Takes the present rules for those that were read: called after a commit that changes no rule about Services. */
  acceptGeneration(): void {
    this.#generation = this.#readGeneration()
  }

  async close(): Promise<void> {
    await Promise.all([this.#connection.close(), this.#route.close()])
  }

  pods: PodNames = address => this.#pods(address)

  rowAt(head: PacketHead) {
    return this.#services.at(head)
  }

  tracked(head: PacketHead): Tracked | 'none' | undefined {
    return findTracked(this.#connection, head)
  }

  interfaceName = (index: number): string => {
    const known = this.#links.get(index) ?? findLink(this.#route, index)?.name
    if (known === undefined || known === '') return `interface ${index}`
    this.#links.set(index, known)
    return known
  }

  async refresh(): Promise<void> {
    // Rules change while packets are traced: they are read again at most this often.
    const isOld = this.#options.clock.nowMs() - this.#readAtMs > 2_000
    if (isOld && this.#readGeneration() !== this.#generation) await this.load()
  }

  async steps(packet: TracedPacket): Promise<readonly NamedStep[]> {
    await this.refresh()
    const generation = this.#readGeneration()
    // A rule that was inserted since moves the numbers of those behind it.
    if (generation !== this.#chainsGeneration) this.#chains.clear()
    this.#chainsGeneration = generation
    const elements = this.#elementsOf(packet)
    const steps: NamedStep[] = []
    for (const step of packet.steps) steps.push(this.#named(step, await this.#find(step), elements))
    return steps
  }

  async #find({ family, table, chain, handle }: PacketStep): Promise<RuleAt | undefined> {
    if (handle === undefined || !isHookFamily(family)) return undefined
    const key = `${family} ${table} ${chain}`
    const listed = this.#chains.get(key)
    const found = listed === undefined ? undefined : ruleAt(listed, handle)
    if (found !== undefined) return found
    const now = await listHandles(this.#connection, { family, table, chain })
    this.#chains.set(key, now)
    return ruleAt(now, handle)
  }

  #named(step: PacketStep, at: RuleAt | undefined, elements: Elements): NamedStep {
    const { family, table, chain, handle, verdict } = step
    const place = `${family} ${table} ${chain}`
    const own = elements(place, (at?.index ?? -1) + 1)
    const common = {
      chain: place,
      rule: at === undefined ? 0 : at.index + 1,
      elements: own,
      isOurs: this.#isOurs(step),
      chainName: chain,
      verdict: verdict && verdictText(verdict),
    }
    if (at !== undefined) return { ...common, ...this.#words(step, at.rule), place: `rule ${at.index + 1}` }
    const unknown = { ...common, isReject: false }
    if (handle === undefined) return { ...unknown, place: 'policy', text: `policy ${verdictText(verdict)}` }
    const byHandle = `rule with handle ${handle}`
    // Rules of bridges and devices are not listed.
    if (!isHookFamily(family)) return { ...unknown, place: byHandle, text: byHandle }
    return { ...unknown, place: 'a rule that was removed since', text: `${byHandle}, removed since` }
  }

  #words({ family, table, chain }: PacketStep, { rule, compiled }: HandledRule) {
    const isReject = rule.expressions.some(
      each =>
        each.kind === 'reject' ||
        (each.kind === 'target' && each.name === 'REJECT') ||
        (each.kind === 'unknown' && each.name === 'reject'),
    )
    const printed = family === 'ip6' ? 'ip6' : 'ip'
    const isXt = rule.expressions.some(
      ({ kind }) => kind === 'match' || kind === 'target' || kind === 'ipset',
    )
    if (family === printed && (isXt || this.#isOurXt({ table, chain }))) {
      try {
        return { text: printRule(readRule(compiled, printed), printed), isReject }
      } catch {
        // A rule that only its own program can read is listed as nft does.
      }
    }
    const own = this.#tables().find(each => each.family === family && each.name === table)
    const sets: ReadonlyMap<string, NftSet> = own?.sets ?? NO_SETS
    return { text: formatRule(rule, { family: printed, sets }), isReject }
  }

  #tables(): readonly Table[] {
    return this.#held.flatMap(({ tables }) => tables)
  }

  #isOurs({ family, table, chain }: PacketStep): boolean {
    const { proxy } = this.#options
    if (MODES.some(({ tableName }) => tableName(proxy) === table)) return true
    return (family === 'ip' || family === 'ip6') && this.#isOurXt({ table, chain })
  }

  #isOurXt({ table, chain }: Pick<PacketStep, 'table' | 'chain'>): boolean {
    const { proxy } = this.#options
    const names = chainNames(proxy)
    return XT_TABLES.some(
      xt => xt === table && (isOurChain(names, xt, chain) || (proxy === undefined && isIpvsChain(xt, chain))),
    )
  }

  /** Gives the elements that the lookups of kprobe's rules find for such a packet: the kernel does not report them. */
  #elementsOf({ first, last, origin, inputInterface }: TracedPacket): Elements {
    const { ports, protocol, source, destination } = first
    if (ports === undefined) return NO_ELEMENTS
    const packet = {
      origin,
      protocol,
      source,
      sourcePort: ports.source,
      destination,
      destinationPort: ports.destination,
      ...(inputInterface === undefined ? {} : { interfaceName: this.interfaceName(inputInterface) }),
    }
    const to = formatIpPort(last.destination, last.ports?.destination ?? 0)
    const steps = this.#tracers.flatMap((tracer): readonly TraceStep[] => {
      const surroundings = { localIps: this.#localIps }
      try {
        // Outcomes of one packet that are computed to find the elements that it met; a Service has more with very many
        // endpoints.
        const ways = tracer.ways(packet, surroundings, 2_000)
        return (ways.find(({ trace }) => endOf(trace) === to) ?? ways[0])?.trace.steps ?? []
      } catch {
        // The steps get no elements if other programs have rules in our chains, or if there are very many endpoints.
        return []
      }
    })
    return (chain, rule) => steps.find(step => step.chain === chain && step.rule === rule)?.elements ?? []
  }
}

type Elements = (chain: string, rule: number) => readonly string[]
const NO_ELEMENTS: Elements = () => []
const NO_SETS: ReadonlyMap<string, NftSet> = new Map()

interface RuleAt {
  readonly rule: HandledRule
  readonly index: number
}

function ruleAt(rules: readonly HandledRule[], handle: bigint): RuleAt | undefined {
  const index = rules.findIndex(rule => rule.handle === handle)
  const rule = rules[index]
  return rule === undefined ? undefined : { rule, index }
}

function endOf({ destination }: Trace): string {
  return formatIpPort(destination.ip, destination.port)
}

function verdictText(verdict: Verdict | undefined): string {
  return verdict === undefined ? 'accept' : formatVerdict(verdict)
}
