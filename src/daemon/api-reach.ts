import type { Clock } from '../base/clock.ts'
import { errorOf } from '../base/errors.ts'
import { familyOf, formatIpPort, type Ip, isIpv4Mapped, isLoopback, parseIp } from '../base/ip.ts'
import { u16be } from '../base/octets.ts'
import type { Config } from '../config/config.ts'
import { createNftClient, type NftClient } from '../kernel/nft/client.ts'
import {
  IPPROTO_TCP,
  NF_INET_LOCAL_OUT,
  NF_INET_PRE_ROUTING,
  NF_IP_PRI_NAT_DST,
  NF_IP_PRI_RAW,
  NFT_META_L4PROTO,
  NFT_META_OIFNAME,
  NFT_PAYLOAD_TRANSPORT_HEADER,
  NFT_TABLE_F_OWNER,
} from '../kernel/nft/constants.ts'
import type { ChainHook, Expression } from '../kernel/nft/state.ts'
import type { Operation, Transaction } from '../kernel/nft/transaction.ts'
import { type ApiEndpoint, sortedEndpoints } from '../model/reserved.ts'
import {
  compare,
  destinationAddress,
  type Expressions,
  rule,
  sourceAddress,
  translateAddress,
} from '../modes/common/rules.ts'
import { type FamilyLayout, LAYOUTS, NFT_FAMILIES } from '../modes/common/tables.ts'
import type { Freed, KernelSockets } from '../modes/mode.ts'
import { MODES } from '../modes/registry.ts'
import type { Transport } from '../netlink/transport.ts'
import type { DialAttempt, DialWatch } from '../source/kube/client/connections.ts'
import type { DaemonIo } from './io.ts'

/** Makes the ApiReach of a daemon. With a dry run or --once, it only reports the endpoints, and writes no bypass. */
export function apiReachOf(
  config: Config,
  io: Pick<DaemonIo, 'clock' | 'log' | 'random' | 'openTransport'>,
  { sockets, changed }: Pick<ApiReachOptions, 'changed'> & { readonly sockets: KernelSockets },
): ApiReach {
  const { backend, once, serviceProxyName } = config
  const writes = backend === 'netlink' && !once
  return new ApiReach({
    ...io,
    openTransport: writes ? io.openTransport : undefined,
    // Modes that implement `free` have objects without names. These belong to the unnamed proxy, whatever its current
    // mode.
    free: MODES.flatMap(({ free }) =>
      free === undefined || serviceProxyName !== undefined
        ? []
        : [async endpoints => await free({ config, clock: io.clock, sockets }, endpoints)],
    ),
    connects: async (address, port) => {
      const { connects } = await import('../source/kube/client/dial.ts')
      return await connects(io.clock, address, port)
    },
    changed,
  })
}

export interface ApiReachOptions {
  readonly clock: Clock
  readonly log: Readonly<Record<'debug' | 'warn', (facts: object, text: string) => void>>
  readonly random: () => number
  /** Opens a socket to nf_tables; undefined if the daemon may not write there. */
  readonly openTransport: (() => Transport) | undefined
  /** Each function removes one mode's objects at endpoints, as Mode.free does. */
  readonly free: readonly ((endpoints: readonly ApiEndpoint[]) => Promise<Freed | undefined>)[]
  readonly connects: (address: string, port: number) => Promise<boolean>
  /** Gets all dialed endpoints, whenever there is a new one. */
  readonly changed: (endpoints: readonly ApiEndpoint[]) => void
}

/**
 * Ways of successive attempts; each failure selects the next. Undefined: without a bypass, which a ClusterIP as API
 * server needs.
 */
const WAYS: readonly (BypassWay | undefined)[] = [undefined, 'nat', undefined, 'untracked']
/** Maximum number of endpoints; the oldest are forgotten first. A cluster has three to seven API servers. */
const ENDPOINTS_MAX = 16
/** Maximum number of bypasses; HTTP/1.1 uses one connection for each request. */
const BYPASSES_MAX = 16
/** The default range of local ports in Linux. */
const LOCAL_PORTS = { first: 32_768, count: 28_232 } as const

/**
 * Tracks the endpoints of the API server that this process connects to. Until the first sync, rules of a former process
 * or another proxy may capture these connections. After each failed attempt, the next one is made with a bypass, or
 * without one again. A bypass is a table that leads packets past such rules. It matches the local port of that one
 * connection: other processes of the node may need the rules to reach a ClusterIP. No bypass works for an address that
 * a mode bound to the node, nor for its virtual server. The daemon removes these, and the first sync restores those
 * that are wanted.
 */
export class ApiReach implements DialWatch {
  readonly #options: ApiReachOptions
  readonly #tables: string
  #endpoints: readonly ApiEndpoint[] = []
  /** Bypasses of the current attempt, and of connections that were made through them. */
  #bypasses: readonly NftClient[] = []
  #attempts = 0
  #opened = 0
  /** The endpoint that is reachable only through a bypass. */
  #captured: readonly [string, number] | undefined
  #over: boolean
  /** The kernel holds what this process wrote, also at the endpoints. */
  #isWritten = false
  #isSynced = false

  constructor(options: ApiReachOptions) {
    this.#options = options
    this.#over = options.openTransport === undefined
    // The kernel lets only one socket own a table of a name, and other proxies may start beside this one.
    const suffix = Math.floor(options.random() * 0x1_0000_0000)
    this.#tables = `kprobe-api-${suffix.toString(16).padStart(8, '0')}`
  }

  reaching(addresses: readonly string[], port: number): void {
    const now = sortedEndpoints(dialedEndpoints(addresses, port))
    const isIn = (list: readonly ApiEndpoint[], { ip, port }: ApiEndpoint) =>
      list.some(its => its.ip === ip && its.port === port)
    const before = this.#endpoints
    // The latest addresses go last, even known ones, so that the one in use is never forgotten.
    this.#endpoints = [...before.filter(its => !isIn(now, its)), ...now].slice(-ENDPOINTS_MAX)
    if (this.#endpoints.every(its => isIn(before, its))) return
    this.#options.changed(sortedEndpoints(this.#endpoints))
  }

  async dialling(): Promise<DialAttempt> {
    const way = WAYS[this.#attempts % WAYS.length]
    const opened = this.#over || way === undefined ? undefined : await this.#open(way)
    return {
      localPort: opened?.localPort,
      connected: async (address, port) => {
        const isCaptured = opened !== undefined && !(await this.#options.connects(address, port))
        if (isCaptured) this.#captured = [address, port]
      },
      failed: async () => {
        this.#attempts++
        if (opened !== undefined) await this.#remove([opened.client])
      },
    }
  }

  /**
   * Closes the bypasses after the first sync, unless rules of other programs still capture the API server. While a saved
   * state is served, nothing is freed any more, but the API server has yet to be reached.
   */
  async synced({ isStale }: { readonly isStale: boolean }): Promise<void> {
    const { connects, log } = this.#options
    this.#isWritten = true
    if (isStale || this.#isSynced) return
    this.#isSynced = true
    const isFree = this.#captured === undefined || (await connects(...this.#captured))
    if (isFree) await this.close()
    if (this.#captured === undefined) return
    log.warn({ endpoints: this.#texts() }, isFree ? RELEASED : STILL_CAPTURED)
  }

  async close(): Promise<void> {
    this.#over = true
    await this.#remove(this.#bypasses)
  }

  async #open(way: BypassWay): Promise<{ client: NftClient; localPort: number } | undefined> {
    const { openTransport, clock, log, random } = this.#options
    const table = `${this.#tables}-${this.#opened++}`
    const localPort = LOCAL_PORTS.first + Math.floor(random() * LOCAL_PORTS.count)
    const transaction = apiBypass({ table, endpoints: this.#endpoints, localPort, way })
    if (openTransport === undefined || transaction.length === 0) return undefined
    try {
      await this.#free()
      if (this.#over) return undefined
      const client = createNftClient({ transport: openTransport(), clock })
      this.#bypasses = [...this.#bypasses, client]
      await this.#remove(this.#bypasses.slice(0, -BYPASSES_MAX))
      const { outcome, failures } = await client.commit(transaction)
      if (outcome !== 'committed') throw failures[0]?.error ?? new Error(`the kernel's answer: ${outcome}`)
      log.debug({ table, way, localPort, endpoints: this.#texts() }, OPENED)
      return { client, localPort }
    } catch (thrown) {
      const isWanted = !this.#over
      await this.close()
      if (isWanted) log.warn({ err: errorOf(thrown) }, FAILED)
      return undefined
    }
  }

  async #free(): Promise<void> {
    const { free, log } = this.#options
    for (const freeMode of free) {
      // After the first sync, the objects may be those that it wrote.
      if (this.#over || this.#isWritten) return
      try {
        const freed = await freeMode(this.#endpoints)
        if (freed !== undefined) log.warn(freed.facts, freed.text)
      } catch (thrown) {
        log.warn({ err: errorOf(thrown) }, NOT_FREED)
      }
    }
  }

  async #remove(clients: readonly NftClient[]): Promise<void> {
    this.#bypasses = this.#bypasses.filter(client => !clients.includes(client))
    await Promise.all(clients.map(client => client.close()))
  }

  #texts(): readonly string[] {
    return this.#endpoints.map(({ ip, port }) => formatIpPort(ip, port))
  }
}

export function dialedEndpoints(addresses: readonly string[], port: number): readonly ApiEndpoint[] {
  return addresses.flatMap(text => {
    const ip = plainIp(text)
    return ip === undefined ? [] : [{ ip, port }]
  })
}

/** Parses an address; undefined if invalid. An IPv4-mapped address gives IPv4, because its packets are IPv4. */
function plainIp(text: string): Ip | undefined {
  const ip = parseIp(text)
  return ip !== undefined && isIpv4Mapped(ip) ? ip.slice(12) : ip
}

const OPENED = 'cannot connect to the API server; this attempt bypasses the Service rules of this node'
const NOT_FREED =
  'cannot read or remove the objects of a proxy mode at the address of the API server; if they capture the connections, run `kprobe cleanup` and restart'
const RELEASED =
  'reached the API server by bypassing Service rules in the kernel; kprobe has replaced them and removed the bypass'
const STILL_CAPTURED =
  'reached the API server by bypassing Service rules of another proxy, which still capture it; the bypass stays; remove that proxy, or its leftovers with `kprobe cleanup`'
const FAILED =
  'cannot bypass the Service rules of this node; if they capture the connections to the API server, run `kprobe cleanup` and restart'

/**
 * A priority before every nat chain of kprobe, of kube-proxy and of other proxies. Nat chains must come
 * behind -200.
 */
const BEFORE_NAT = NF_IP_PRI_NAT_DST - 50
const LOOPBACK_DEVICE = 'lo'.padEnd(16, '\0')

/**
 * `nat` keeps connections tracked, which firewalls of the node may require, and bypasses only rules that
 * translate. `untracked` also bypasses rules that reject new connections (`ct state new`).
 */
type BypassWay = 'nat' | 'untracked'

interface BypassQuery {
  readonly table: string
  readonly endpoints: readonly ApiEndpoint[]
  readonly localPort: number
  readonly way: BypassWay
}

/**
 * Makes the tables through which connections from one local port bypass the rules about Services, of an
 * earlier process or of another proxy. The first nat chain that translates a connection is the only one, and
 * this one translates to the destination that the packet already has. Between addresses of this node neither
 * way tracks packets, because rules that reject a Service in INPUT match only tracked ones. The kernel
 * removes the tables when the socket that wrote them is closed. The transaction is empty when no rule can
 * capture any of the endpoints.
 */
function apiBypass(query: BypassQuery): Transaction {
  return NFT_FAMILIES.flatMap(family => {
    const layout = LAYOUTS[family]
    const endpoints = query.endpoints.filter(({ ip }) => familyOf(ip) === layout.model && !isLoopback(ip))
    return endpoints.length === 0 ? [] : tableFor(layout, { ...query, endpoints })
  })
}

function tableFor(layout: FamilyLayout, { table, endpoints, localPort, way }: BypassQuery): Transaction {
  const at = { family: layout.family, table }
  const chain = (
    name: string,
    hook: ChainHook,
    expressions: (endpoint: ApiEndpoint) => readonly Expressions[],
  ) => [
    { ...at, verb: 'add-chain', chain: { name, hook, rules: [] } } satisfies Operation,
    ...endpoints
      .flatMap(expressions)
      .map(its => ({ ...at, verb: 'add-rule', chain: name, rule: rule(its) }) satisfies Operation),
  ]
  const there = ({ ip, port }: ApiEndpoint) => packetOf(destinationAddress(layout, 0), ip, [localPort, port])
  const back = ({ ip, port }: ApiEndpoint) => packetOf(sourceAddress(layout, 0), ip, [port, localPort])
  const where = way === 'nat' ? TO_LOOPBACK : []
  const raw = (hooknum: number): ChainHook => ({ type: 'filter', hooknum, priority: NF_IP_PRI_RAW })
  const output: ChainHook = { type: 'nat', hooknum: NF_INET_LOCAL_OUT, priority: BEFORE_NAT }
  const translation = [destinationAddress(layout, 0), translateAddress(layout, 0)]
  return [
    { ...at, verb: 'add-table', flags: NFT_TABLE_F_OWNER, comment: undefined },
    ...chain('local', raw(NF_INET_LOCAL_OUT), endpoint => [
      [...where, ...there(endpoint), NOTRACK],
      [...where, ...back(endpoint), NOTRACK],
    ]),
    ...(way === 'nat'
      ? chain('output', output, endpoint => [[...there(endpoint), ...translation]])
      : chain('answers', raw(NF_INET_PRE_ROUTING), endpoint => [[...back(endpoint), NOTRACK]])),
  ]
}

const NOTRACK: Expression = { kind: 'unknown', name: 'notrack', data: '' }
const TO_LOOPBACK: Expressions = [
  { kind: 'meta', key: NFT_META_OIFNAME, dreg: 0 },
  compare('eq', 0, LOOPBACK_DEVICE),
]

/** Matches TCP packets with this address and these source and destination ports. */
function packetOf(address: Expression, ip: Ip, [from, to]: readonly [number, number]): Expressions {
  return [
    address,
    compare('eq', 0, ip),
    { kind: 'meta', key: NFT_META_L4PROTO, dreg: 0 },
    compare('eq', 0, String.fromCharCode(IPPROTO_TCP)),
    { kind: 'payload', base: NFT_PAYLOAD_TRANSPORT_HEADER, offset: 0, length: 4, dreg: 0 },
    compare('eq', 0, u16be(from) + u16be(to)),
  ]
}
