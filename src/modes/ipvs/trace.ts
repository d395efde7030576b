import { finish } from '../../base/clock.ts'
import { cidrOf, familyOf, formatIp, type Ip } from '../../base/ip.ts'
import type { Config } from '../../config/config.ts'
import { entryKey, type Ipset } from '../../kernel/ipset/state.ts'
import {
  destinationKey,
  type IpvsProtocol,
  isPersistent,
  type RealServer,
  serverKey,
} from '../../kernel/ipvs/state.ts'
import { NF_INET_POST_ROUTING } from '../../kernel/nft/constants.ts'
import type { Ruleset } from '../../kernel/nft/state.ts'
import { allWays, createTracer, type Tracer } from '../../kernel/nft/trace.ts'
import type { Balance, BalancedPacket, IpsetTuple } from '../../kernel/nft/trace-packet.ts'
import { printRule } from '../../kernel/xt/print.ts'
import type { FrontendTable } from '../../model/frontend.ts'
import { PROTOCOL_NUMBERS } from '../common/tables.ts'
import type { ModeTracer } from '../mode.ts'
import { type Traceable, tablesOf, traceTables, type XtTables } from '../xt-common/trace.ts'
import { renderIpvsState } from './render.ts'
import { ipvsOptions } from './settings.ts'
import { EMPTY_STATE, type IpvsState, type PlacedServer } from './state.ts'

/** The key for clients that IPVS remembers, among the elements that packets wrote. */
const TEMPLATES = 'ipvs templates'
const WAYS_MAX = 100_000

/**
 * Traces packets through our tables, the ipsets and IPVS in memory. It works as createTracer does, and treats
 * addresses of the dummy device as addresses of the node. Schedulers are assumed to choose any destination
 * with a weight. `found` are the iptables chains that were read together with a state.
 */
export function createIpvsTracer(state: IpvsState, found?: Traceable): Tracer {
  const chains = found === undefined ? tablesIn(state) : tablesOf(found)
  const follow = chains === undefined ? createTracer(state.ruleset).trace : throughBoth(state.ruleset, chains)
  const bound = [...state.addresses.values()].map(({ ip }) => ip)
  const prefixes = prefixLengths(state)
  const trace: Tracer['trace'] = (packet, surroundings) => {
    const templates = new Map(surroundings.dynamic?.get(TEMPLATES))
    const found = follow(packet, {
      ...surroundings,
      localIps: new Set([...surroundings.localIps, ...bound]),
      ipsets: (set, tuple) => hasTuple(state, { set, tuple, prefixes }),
      balance: its => balance(state, its, { random: surroundings.random, templates }),
    })
    return { ...found, dynamic: new Map(found.dynamic).set(TEMPLATES, templates) }
  }
  return {
    trace,
    ways: (packet, surroundings, limit = WAYS_MAX) =>
      allWays((random, forget) => trace(packet, { ...surroundings, random, forget }), limit),
  }
}

export function ipvsTracer(config: Config, table: FrontendTable): ModeTracer {
  const options = { ...ipvsOptions(config), missingSchedulers: NONE_MISSING }
  const state = finish(renderIpvsState(table, { base: EMPTY_STATE, without: new Set() }, options))
  // For a destination bound to a device of this machine, the kernel uses the destination itself as the
  // source.
  const ownSource = (destination: Ip) => (state.addresses.has(destination) ? destination : undefined)
  return { ...createIpvsTracer(state), ownSource }
}

const NONE_MISSING: ReadonlySet<string> = new Set()

/** Gives the iptables tables; undefined where all rules are in our own tables. */
function tablesIn({ chains }: IpvsState): XtTables | undefined {
  if (chains.kind !== 'wanted' || chains.common === undefined) return undefined
  const { common } = chains
  return tablesOf({ chains: common.chains.values(), jumps: common.jumps, print: printRule })
}

/**
 * Traces packets through both. At each hook our own nat chains come first. A packet that they drop or reject
 * does not reach the chains of iptables. IPVS comes behind the chains of iptables.
 */
function throughBoth({ tables }: Ruleset, chains: XtTables): Tracer['trace'] {
  const only = (isWanted: (hooknum: number | undefined) => boolean): Tracer =>
    createTracer({
      tables: tables.map(table => {
        const its = [...table.chains].filter(([, { hook }]) => hook === undefined || isWanted(hook.hooknum))
        return { ...table, chains: new Map(its) }
      }),
    })
  const before = only(hooknum => hooknum !== NF_INET_POST_ROUTING)
  const behind = only(hooknum => hooknum === NF_INET_POST_ROUTING)
  return (packet, { balance: balancing, ...around }) => {
    const first = before.trace(packet, around)
    if (first.verdict === 'drop' || first.verdict === 'reject') return first
    const { ip: destination, port: destinationPort } = first.destination
    const rest = traceTables(chains, packet, {
      ...around,
      ...(balancing === undefined ? {} : { balance: balancing }),
      dynamic: first.dynamic,
      arrived: { destination, destinationPort, mark: first.mark, translated: first.verdict === 'dnat' },
      beforePostrouting: state => {
        const { mark, steps } = behind.trace({ ...packet, ...state, origin: 'process' }, around)
        state.mark = mark
        return steps
      },
    })
    return { ...rest, steps: [...first.steps, ...rest.steps] }
  }
}

// ---- ipsets

interface Question {
  readonly set: string
  readonly tuple: IpsetTuple
  /** The prefix lengths of networks, by set. */
  readonly prefixes: ReadonlyMap<string, readonly number[]>
}

/** Whether a set contains the tuple, as in ip_set_test: never for another family, or with too few dimensions. */
function hasTuple({ sets, entries }: IpvsState, { set: name, tuple, prefixes }: Question): boolean {
  const set = sets.get(name)
  if (set === undefined) throw new Error(`there is no ipset ${name}`)
  const { protocol, sides } = tuple
  const [first, second, third] = sides
  if (first === undefined || !isOfFamily(set, first.ip)) return false
  const has = (entry: Parameters<typeof entryKey>[1]) => entries.has(entryKey(name, entry))
  switch (set.type) {
    case 'hash:ip':
      return has({ ip: first.ip })
    case 'bitmap:port':
      return has({ port: first.port })
    case 'hash:ip,port':
      return second !== undefined && has({ ip: first.ip, protocol, port: second.port })
    case 'hash:ip,port,ip':
      if (second === undefined || third === undefined) return false
      return has({ ip: first.ip, protocol, port: second.port, ip2: third.ip })
    case 'hash:ip,port,net':
      if (second === undefined || third === undefined) return false
      return (prefixes.get(name) ?? []).some(bits =>
        has({
          ip: first.ip,
          protocol,
          port: second.port,
          ip2: cidrOf(third.ip, bits).ip,
          prefix2: bits,
        }),
      )
  }
}

function isOfFamily({ type, family }: Ipset, ip: Ip): boolean {
  return type === 'bitmap:port' || family === familyOf(ip)
}

function prefixLengths({ entries }: IpvsState): ReadonlyMap<string, readonly number[]> {
  const lengths = new Map<string, Set<number>>()
  for (const { set, entry } of entries.values()) {
    if (entry.prefix2 === undefined) continue
    const known = lengths.get(set) ?? new Set()
    lengths.set(set, known.add(entry.prefix2))
  }
  return new Map([...lengths].map(([set, bits]) => [set, [...bits]]))
}

// ---- IPVS

const PROTOCOLS: ReadonlyMap<number, IpvsProtocol> = new Map(
  (['TCP', 'UDP', 'SCTP'] as const).map(name => [PROTOCOL_NUMBERS[name], name]),
)

interface Choosing {
  readonly random: (modulus: number) => number
  /** The last destination of a client, by client and virtual server. */
  readonly templates: Map<string, string | undefined>
}

function balance(state: IpvsState, packet: BalancedPacket, choosing: Choosing): Balance | undefined {
  const protocol = PROTOCOLS.get(packet.protocol)
  if (protocol === undefined) return undefined
  const key = serverKey({ protocol, ip: packet.destination, port: packet.destinationPort })
  const placed = state.servers.get(key)
  if (placed === undefined) return undefined
  const usable = [...placed.destinations].filter(([, { weight }]) => weight > 0)
  const { server } = placed
  const text = [server.scheduler, ...(isPersistent(server) ? [`persistent ${server.timeoutS}`] : [])].join(
    ' ',
  )
  const about = { server: key, text, destinations: usable.map(([its]) => its) }
  const to = isPersistent(server)
    ? remembered(placed, `${formatIp(packet.source)} ${key}`, { ...choosing, usable })
    : chosen(usable, choosing.random)
  return { ...about, to }
}

type Usable = readonly (readonly [string, RealServer])[]

function chosen(usable: Usable, random: (modulus: number) => number): RealServer | undefined {
  return usable.length === 0 ? undefined : usable[random(usable.length)]?.[1]
}

/** Finds the remembered destination, unless it is gone or drains (expire_quiescent_template). */
function remembered(
  { destinations }: PlacedServer,
  client: string,
  { random, templates, usable }: Choosing & { readonly usable: Usable },
): RealServer | undefined {
  const last = destinations.get(templates.get(client) ?? '')
  if (last !== undefined && last.weight > 0) return last
  const now = chosen(usable, random)
  templates.set(client, now === undefined ? undefined : destinationKey(now))
  return now
}
