import { familyOf, type Ip, isLoopback } from '../../base/ip.ts'
import { readU16be, readU32host, u16be, u32host } from '../../base/octets.ts'
import {
  destinationKey,
  type HeldServer,
  type IpvsHeld,
  isPersistent,
  serverKey,
  type VirtualServer,
} from '../../kernel/ipvs/state.ts'
import { RTN_LOCAL, RTN_UNICAST } from '../../kernel/nft/constants.ts'
import { formatRule } from '../../kernel/nft/print-rule.ts'
import type { NftFamily, Table } from '../../kernel/nft/state.ts'
import { IpvsClasses } from './ipvs.ts'
import { point } from './region.ts'
import { newLog } from './sets.ts'
import { type DynamicElements, type PathStep, SinglePacket, withoutOldLists } from './single.ts'
import type { Box, RulePlace } from './values.ts'
import { type Leaf, Walker } from './walk.ts'

/** The first packet of a connection. */
export interface TracePacket {
  /** The packet comes from an interface, or from a process of this node. */
  readonly origin: 'interface' | 'process'
  readonly protocol: number
  readonly source: Ip
  readonly sourcePort: number
  readonly destination: Ip
  readonly destinationPort: number
  /** The interface that it enters by; without it, rules that compare the interface do not match. */
  readonly interfaceName?: string
  readonly mark?: number
}

/** The inputs of a trace besides rules and packet. */
export interface TraceSurroundings {
  /** This node's addresses, except loopback addresses, which the tracer knows. */
  readonly localIps: ReadonlySet<Ip>
  /** Returns a whole number from 0 up to, not including, `modulus`. */
  readonly random: (modulus: number) => number
  /** Elements that are added to the ruleset's own and take precedence. */
  readonly dynamic?: DynamicElements | undefined
}

/** The path of a connection's first packet through a ruleset. */
export interface Trace {
  readonly verdict: 'dnat' | 'reject' | 'drop' | 'accept'
  /** The final destination: translated, or chosen by IPVS, when the verdict is dnat. */
  readonly destination: { readonly ip: Ip; readonly port: number }
  readonly masquerade: boolean
  readonly mark: number
  /** The rules that took effect, in order. */
  readonly steps: readonly TraceStep[]
  /** Elements that packets wrote, including this one: the input of the next trace. */
  readonly dynamic: DynamicElements
}

export interface TraceStep {
  /** `ip kube-proxy services`, `ipvs TCP 10.96.0.1:443`. */
  readonly chain: string
  readonly rule: number
  /** The rule as nft prints it. */
  readonly text: string
  /** Elements that its lookups found, as nft prints them: `frontends: 10.96.0.1 . tcp . 443 comment "..." : 0x...`. */
  readonly elements: readonly string[]
}

export interface Way {
  readonly trace: Trace
  readonly probability: number
}

export interface Tracer {
  trace(packet: TracePacket, surroundings: TraceSurroundings): Trace
  /**
   * Returns every distinguishable outcome with its probability: all rolls of all random numbers, at most `limit` ways
   * through the rules.
   */
  ways(packet: TracePacket, surroundings: Omit<TraceSurroundings, 'random'>, limit?: number): readonly Way[]
}

export interface Traced {
  readonly tables: readonly Table[]
  /** Prints a rule that nft does not print as its program does; undefined for others. */
  readonly print?: (place: RulePlace) => string | undefined
  /** The state of IPVS and ipsets, without the addresses of the node. */
  readonly ipvs?: IpvsHeld
  /** The lists of `-m recent` that the rules name, where others may be left from earlier rules. */
  readonly lists?: ReadonlySet<string>
}

const WAYS_MAX = 100_000

/** Traces packets through rules that exist only as values. Throws for rules that the evaluator does not know. */
export function createTracer(traced: Traced): Tracer {
  const walkers = new Map<NftFamily, Walker>()
  const bound = new Set(traced.ipvs?.addresses)
  const servers = new Map(traced.ipvs?.servers.map(held => [held.server, held]))
  const follow = (
    packet: TracePacket,
    { localIps, random, dynamic = new Map() }: Omit<TraceSurroundings, 'random'> & Partial<TraceSurroundings>,
    left: number,
  ): readonly Way[] => {
    const family = familyOf(packet.source) === 'IPv4' ? 'ip' : 'ip6'
    const walker = walkers.get(family) ?? walkerOf(traced, family)
    walkers.set(family, walker)
    const local = { has: (ip: Ip) => localIps.has(ip) || bound.has(ip) }
    const leaves = walker.walkAlone(
      new SinglePacket({ source: packet.source, dynamic, random, ways: { left } }),
      {
        hook: packet.origin === 'process' ? 'output' : 'prerouting',
        box: boxOf(packet, ip => isLoopback(ip) || local.has(ip)),
        mark: u32host(packet.mark ?? 0),
        localIps: local,
      },
    )
    return leaves.map(leaf => ({
      trace: traceOf(leaf, packet, { ...traced, servers }),
      probability: leaf.machine.probability,
    }))
  }
  return {
    trace(packet, surroundings) {
      const [way] = follow(packet, surroundings, WAYS_MAX)
      if (way === undefined) throw new Error('a packet has one way')
      return way.trace
    },
    ways: (packet, { localIps, dynamic }, limit = WAYS_MAX) =>
      outcomesOf(follow(packet, { localIps, dynamic }, limit)),
  }
}

function walkerOf({ tables, ipvs }: Traced, family: NftFamily): Walker {
  const owns = () => true
  return new Walker(tables, {
    family,
    ownName: '',
    owns,
    ipvs: ipvs && new IpvsClasses(ipvs, family === 'ip' ? 'IPv4' : 'IPv6'),
    log: newLog(),
    nodeIps: new Set(),
  })
}

function boxOf(packet: TracePacket, isLocal: (ip: Ip) => boolean): Box {
  const typeOf = (ip: Ip) => point(u32host(isLocal(ip) ? RTN_LOCAL : RTN_UNICAST))
  const { origin, protocol, source, sourcePort, destination, destinationPort, interfaceName = '' } = packet
  return {
    source: point(source),
    sourceType: typeOf(source),
    sourcePort: point(u16be(sourcePort)),
    destination: point(destination),
    destinationType: typeOf(destination),
    destinationPort: point(u16be(destinationPort)),
    protocol: point(String.fromCharCode(protocol)),
    interface: point((origin === 'interface' ? interfaceName : '').padEnd(16, '\0')),
  }
}

/** The evaluator knows each end of rules that all count as ours, or throws. */
const VERDICTS = {
  endpoint: 'dnat',
  pass: 'accept',
  drop: 'drop',
  reject: 'reject',
  unknown: 'accept',
} as const

interface Printed extends Traced {
  readonly servers: ReadonlyMap<VirtualServer, HeldServer>
}

function traceOf({ machine, end }: Leaf, packet: TracePacket, traced: Printed): Trace {
  const { single, masquerade, mark } = machine
  const endpoint = machine.endpoints()[0]
  const steps: TraceStep[] = []
  for (let at = single?.path; at !== undefined; at = at.before) steps.push(stepOf(at, traced))
  return {
    verdict: VERDICTS[end],
    destination:
      endpoint === undefined
        ? { ip: packet.destination, port: packet.destinationPort }
        : { ip: endpoint.slice(0, -2), port: readU16be(endpoint, endpoint.length - 2) },
    masquerade,
    mark: typeof mark === 'string' ? readU32host(mark) : 0,
    steps: steps.reverse(),
    dynamic: withoutOldLists(single?.dynamic ?? new Map(), traced.lists),
  }
}

function stepOf({ place, elements, server }: PathStep, traced: Printed): TraceStep {
  const { table: name, chain, rule } = place
  if (rule === undefined) return serverStep(server && traced.servers.get(server))
  const table = traced.tables.find(its => `${its.family} ${its.name}` === name)
  const held = table?.chains.get(chain)?.rules[rule - 1]
  const text = traced.print?.(place) ?? (table && held && formatRule(held, table)) ?? ''
  return { chain: `${name} ${chain}`, rule, text, elements }
}

function serverStep(held: HeldServer | undefined): TraceStep {
  if (held === undefined) throw new Error('IPVS took the packet for no virtual server')
  const { server, destinations } = held
  const usable = destinations.filter(({ weight }) => weight > 0)
  const persistence = isPersistent(server) ? [`persistent ${server.timeoutS}`] : []
  return {
    chain: `ipvs ${serverKey(server)}`,
    rule: 1,
    text: [server.scheduler, ...persistence].join(' '),
    elements: usable.map(destinationKey),
  }
}

/** Counts equal outcomes as one, with the path of the first. */
function outcomesOf(ways: readonly Way[]): readonly Way[] {
  const found = new Map<string, { readonly trace: Trace; probability: number }>()
  for (const { trace, probability } of ways) {
    const { verdict, destination, masquerade } = trace
    const key = JSON.stringify([verdict, destination, masquerade])
    const known = found.get(key)
    if (known === undefined) found.set(key, { trace, probability })
    else known.probability += probability
  }
  return [...found.values()]
}
