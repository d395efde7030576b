import { append } from '../../base/collections.ts'
import { assert, unreachable } from '../../base/errors.ts'
import type { Ip } from '../../base/ip.ts'
import type { NftFamily } from '../../kernel/nft/state.ts'
import { allWays, balance, type Trace, type Tracer, type TraceStep } from '../../kernel/nft/trace.ts'
import {
  familyOfPacket,
  isLocal,
  type PacketState,
  type TracePacket,
  type TraceSurroundings,
} from '../../kernel/nft/trace-packet.ts'
import { printRule } from '../../kernel/xt/print.ts'
import { targetChain, type XtMatch, type XtRule, type XtTarget } from '../../kernel/xt/rule.ts'
import type { XtChain, XtJump, XtTableName } from '../../kernel/xt/scope.ts'
import type { ReadChain } from './read-chains.ts'
import { Chance, type Matching, matchesRule, RecentLists } from './trace-match.ts'

/** The chains and jumps that packets are traced through. */
export interface Traceable {
  /** Chains with their entries among the rules. */
  readonly chains: Iterable<XtChain>
  /** Jumps in the order in which they are inserted. */
  readonly jumps: Iterable<XtJump>
  readonly print: XtTables['print']
}

const WAYS_MAX = 100_000

/** Makes a tracer. `made` is called once, for the first packet. */
export function createXtTracer(made: () => Traceable): Tracer {
  let tables: XtTables | undefined
  const trace: Tracer['trace'] = (packet, surroundings) => {
    tables ??= tablesOf(made())
    return traceTables(tables, packet, surroundings)
  }
  return {
    trace,
    ways: (packet, surroundings, limit = WAYS_MAX) =>
      allWays(random => trace(packet, { ...surroundings, random }), limit),
  }
}

export function tablesOf({ chains: all, jumps, print }: Traceable): XtTables {
  const chains = new Map<string, readonly XtRule[]>()
  const recent = new Set<string>()
  for (const { family, table, name, rules, last } of all) {
    const inOrder = last.length === 0 ? rules : [...rules, ...last]
    chains.set(`${family} ${table} ${name}`, inOrder)
    for (const { matches } of inOrder)
      for (const match of matches) if (isRecent(match)) recent.add(match.name)
  }
  for (const { family, table, chain, rule } of jumps) {
    const key = `${family} ${table} ${chain}`
    chains.set(key, [rule, ...(chains.get(key) ?? [])])
    if (rule.target?.kind !== 'jump') continue
    // KUBE-FIREWALL may have no rules of ours.
    const to = `${family} ${table} ${rule.target.chain}`
    if (!chains.has(to)) chains.set(to, [])
  }
  const indexes = new Map<string, RuleIndex>()
  for (const [key, rules] of chains) {
    const index = indexRules(rules)
    if (index !== undefined) indexes.set(key, index)
  }
  return { chains, indexes, recent, print }
}

function isRecent(match: XtMatch): match is Extract<XtMatch, { kind: 'recent' }> {
  return match.kind === 'recent'
}

/**
 * Selects the chains to trace. Only jumps to our chains and to `firewall`, which kubelet writes as well, are
 * followed; other rules of shared chains belong to other programs.
 */
export function traceable(chains: readonly ReadChain[], firewall?: string): Traceable {
  const ours = chains.filter(({ ours, name }) => ours || name === firewall)
  const isOurs = new Set(ours.map(({ family, table, name }) => `${family} ${table} ${name}`))
  const shared = chains
    .filter(({ ours, policy }) => !ours && policy !== undefined)
    .map(chain => ({
      ...chain,
      rules: chain.rules.filter(({ rule }) =>
        isOurs.has(`${chain.family} ${chain.table} ${targetChain(rule) ?? ''}`),
      ),
    }))
  return {
    chains: [...ours, ...shared].map(({ family, table, name, rules }) => {
      return { family, table, name, rules: rules.map(({ rule }) => rule), last: [] }
    }),
    jumps: [],
    print: printRule,
  }
}

/** The chains of iptables with all their rules in order, by `ip nat KUBE-SERVICES`, including the built-in ones. */
export interface XtTables {
  readonly chains: ReadonlyMap<string, readonly XtRule[]>
  readonly indexes?: ReadonlyMap<string, RuleIndex>
  /** The lists of `-m recent` that the rules name. */
  readonly recent: ReadonlySet<string>
  /** Prints a rule as iptables-save does after `-A CHAIN `. */
  readonly print: (rule: XtRule, family: NftFamily) => string
}

type Hook = 'PREROUTING' | 'INPUT' | 'FORWARD' | 'OUTPUT' | 'POSTROUTING'

/** The tables that have chains at each hook, by priority. */
const TABLES: Readonly<Record<Hook, readonly XtTableName[]>> = {
  PREROUTING: ['mangle', 'nat'],
  INPUT: ['mangle', 'filter', 'nat'],
  FORWARD: ['mangle', 'filter'],
  OUTPUT: ['mangle', 'nat', 'filter'],
  POSTROUTING: ['mangle', 'nat'],
}

interface Walk extends Matching {
  readonly surroundings: XtSurroundings
  readonly tables: XtTables
  readonly family: NftFamily
  readonly steps: TraceStep[]
  inInterface: string
  masquerade: boolean
}

/** The packet after the nat chains that come before those of iptables. */
type Arrived = Pick<PacketState, 'destination' | 'destinationPort' | 'mark' | 'translated'>

interface XtSurroundings extends TraceSurroundings {
  readonly arrived?: Arrived
  /** Runs the nat chains that come before those of POSTROUTING. Changes the state and gives the steps. */
  readonly beforePostrouting?: (state: PacketState) => readonly TraceStep[]
}

/** Traces a packet. Throws for matches and targets that Kubernetes does not use. */
export function traceTables(tables: XtTables, packet: TracePacket, surroundings: XtSurroundings): Trace {
  const { destination, destinationPort, mark = 0 } = packet
  const unchanged: Arrived = { destination, destinationPort, mark, translated: false }
  const walk: Walk = {
    tables,
    family: familyOfPacket(packet),
    packet,
    surroundings,
    state: { ...(surroundings.arrived ?? unchanged), priority: 0, balanced: false },
    recent: new RecentLists(surroundings.dynamic),
    chance: new Chance(surroundings.random),
    steps: [],
    inInterface: '',
    masquerade: false,
  }
  const end = walkHooks(walk)
  return {
    verdict: end ?? (walk.state.translated || walk.state.balanced ? 'dnat' : 'accept'),
    destination: { ip: walk.state.destination, port: walk.state.destinationPort },
    masquerade: walk.masquerade,
    mark: walk.state.mark,
    steps: walk.steps,
    dynamic: walk.recent.after(tables.recent),
  }
}

type End = 'drop' | 'reject' | undefined

/** Returns the reason why the packet stopped; undefined when it did not. */
function walkHooks(walk: Walk): End {
  const { packet, surroundings, state } = walk
  const toUs = () => isLocal(state.destination, surroundings)
  if (packet.origin === 'interface') {
    const first = walkHook(walk, 'PREROUTING')
    if (first !== undefined) return first
    if (!toUs()) return walkHook(walk, 'FORWARD') ?? walkHook(walk, 'POSTROUTING')
    const end = walkHook(walk, 'INPUT') ?? balance(walk)
    return end ?? (state.balanced ? walkHook(walk, 'POSTROUTING') : undefined)
  }
  const end = walkHook(walk, 'OUTPUT') ?? balance(walk) ?? walkHook(walk, 'POSTROUTING')
  // The packet passes the loopback device as the same new connection; nat has already handled it.
  return end ?? (toUs() ? walkHook(walk, 'INPUT') : undefined)
}

/** Hooks whose nat chains skip a connection that one of them has translated. */
const FIRST: ReadonlySet<Hook> = new Set(['PREROUTING', 'OUTPUT'])

function walkHook(walk: Walk, hook: Hook): End {
  const isTranslated = FIRST.has(hook) && walk.state.translated
  if (hook === 'POSTROUTING') walk.steps.push(...(walk.surroundings.beforePostrouting?.(walk.state) ?? []))
  walk.inInterface = inInterfaceAt(hook, walk.packet)
  for (const table of TABLES[hook]) {
    if (isTranslated && table === 'nat') continue
    const decision = walkChain(walk, { table, chain: hook, depth: 0 })
    if (decision === 'drop' || decision === 'reject') return decision
  }
  return undefined
}

/** Returns the interface of a packet at a hook; empty where there is none, as in rules. */
function inInterfaceAt(hook: Hook, { origin, interfaceName = '' }: TracePacket): string {
  if (hook === 'OUTPUT' || hook === 'POSTROUTING') return ''
  return origin === 'interface' ? interfaceName : 'lo'
}

type Decision = 'accept' | 'return' | 'drop' | 'reject'

interface Position {
  readonly table: XtTableName
  readonly chain: string
  readonly depth: number
}

/** The maximum depth of jumps. The kernel rejects rules that loop, and so does this trace. */
const DEPTH_MAX = 64

function walkChain(walk: Walk, position: Position): Decision {
  const { table, chain, depth } = position
  assert(depth < DEPTH_MAX, `chains loop at ${chain}`)
  const key = `${walk.family} ${table} ${chain}`
  const rules = walk.tables.chains.get(key)
  // The table or hook contains no chain in use.
  if (rules === undefined && depth === 0) return 'return'
  assert(rules !== undefined, `there is no chain ${key}`)
  const candidates = walk.tables.indexes?.get(key)?.candidates(walk.state) ?? rules.entries()
  for (const [index, rule] of candidates) {
    // A rule that logs decides nothing, and what its limit matches depends on other packets.
    if (rule.target?.kind === 'NFLOG' || !matchesRule(rule, walk)) continue
    const text = `-A ${chain} ${walk.tables.print(rule, walk.family)}`
    walk.steps.push({ chain: key, rule: index + 1, text, elements: [] })
    const decision = hit(walk, rule.target, position)
    if (decision !== 'continue') return decision
  }
  return 'return'
}

function hit(walk: Walk, target: XtTarget | undefined, position: Position): Decision | 'continue' {
  const { state } = walk
  if (target === undefined) return 'continue'
  switch (target.kind) {
    case 'ACCEPT':
      return 'accept'
    case 'DROP':
      return 'drop'
    case 'RETURN':
      return 'return'
    case 'REJECT':
      return 'reject'
    case 'MARK':
      state.mark = ((state.mark & ~target.mask) ^ target.value) >>> 0
      return 'continue'
    case 'MASQUERADE':
      walk.masquerade = true
      return 'accept'
    case 'DNAT':
      state.destination = target.ip
      state.destinationPort = target.port
      state.translated = true
      return 'accept'
    case 'jump':
    case 'goto': {
      const decision = walkChain(walk, { ...position, chain: target.chain, depth: position.depth + 1 })
      return decision === 'return' && target.kind === 'jump' ? 'continue' : decision
    }
    case 'NFLOG':
      return 'continue'
    case 'unknown':
      throw new Error(`cannot trace -j ${target.name}`)
    default:
      return unreachable(target)
  }
}

/** The number of rules from which a chain gets an index. */
const INDEXED_FROM = 32

type Place = readonly [index: number, rule: XtRule]

/**
 * Finds the rules of a long chain that can match a packet, without a test of each rule. Nearly every rule of a shared
 * chain matches one destination address or one destination port.
 */
interface RuleIndex {
  /** Returns the candidates in the order of the chain. */
  candidates(state: Pick<PacketState, 'destination' | 'destinationPort'>): readonly Place[]
}

function indexRules(rules: readonly XtRule[]): RuleIndex | undefined {
  if (rules.length < INDEXED_FROM) return undefined
  const byAddress = new Map<Ip, Place[]>()
  const byPort = new Map<number, Place[]>()
  const others: Place[] = []
  for (const place of rules.entries()) {
    const ip = hostOf(place[1])
    const port = ip === undefined ? portOf(place[1]) : undefined
    if (ip !== undefined) append(byAddress, ip, place)
    else if (port !== undefined) append(byPort, port, place)
    else others.push(place)
  }
  return {
    candidates({ destination, destinationPort }) {
      const found = [...others, ...(byAddress.get(destination) ?? []), ...(byPort.get(destinationPort) ?? [])]
      return found.sort(([a], [b]) => a - b)
    },
  }
}

function hostOf({ destination }: XtRule): Ip | undefined {
  if (destination === undefined || destination.inverted) return undefined
  return /^\xff*$/.test(destination.mask) ? destination.ip : undefined
}

function portOf({ matches }: XtRule): number | undefined {
  for (const match of matches) {
    if (match.kind !== 'tcp' && match.kind !== 'udp' && match.kind !== 'sctp') continue
    const { destinationPorts: ports } = match
    if (ports !== undefined && ports.from === ports.to && !ports.inverted) return ports.from
  }
  return undefined
}
