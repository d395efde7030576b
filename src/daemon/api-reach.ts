import type { Clock } from '../base/clock.ts'
import { errorOf } from '../base/failure-text.ts'
import { formatIpPort, type Ip, isIpv4Mapped, parseIp } from '../base/ip.ts'
import type { Config } from '../config/config.ts'
import { createNftClient, type NftClient } from '../kernel/nft/client.ts'
import { type ApiEndpoint, sortedEndpoints } from '../model/api-server.ts'
import { apiBypass, type BypassWay } from '../modes/common/api-bypass.ts'
import type { Freed, KernelSockets } from '../modes/mode.ts'
import { MODES } from '../modes/registry.ts'
import type { Transport } from '../netlink/transport.ts'
import type { DialAttempt, DialWatch } from '../source/kube/client/http-client.ts'
import type { DaemonIo } from './io.ts'

/** For the daemon of a configuration: one that only reads, or runs once, writes no way past anything. */
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
    // Modes that can free hold objects without a name: these belong to the unnamed proxy, whatever its mode is now.
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
  /** Uniform in [0, 1). */
  readonly random: () => number
  /** Opens a socket to nf_tables; undefined where nothing may be written. */
  readonly openTransport: (() => Transport) | undefined
  /** Each removes what one mode holds at endpoints, as Mode.free does. */
  readonly free: readonly ((endpoints: readonly ApiEndpoint[]) => Promise<Freed | undefined>)[]
  /** Whether a connection can be made. */
  readonly connects: (address: string, port: number) => Promise<boolean>
  /** All endpoints that were dialled, whenever there is another one. */
  readonly changed: (endpoints: readonly ApiEndpoint[]) => void
}

/** The most that are kept; the oldest are forgotten first. */
const ENDPOINTS_MAX = 16
/** Ways of attempts, each the next after a failure. Undefined: none past rules, as a ClusterIP of the cluster needs it. */
const WAYS: readonly (BypassWay | undefined)[] = [undefined, 'nat', undefined, 'untracked']
/** Connections past rules; HTTP/1.1 has one for each request. */
const BYPASSES_MAX = 16
/** Linux's own choice of local ports. */
const LOCAL_PORTS = { first: 32_768, count: 28_232 } as const

/**
 * Follows where this process reaches the API server. Until the first sync, rules that a former process or another proxy
 * left in the kernel may capture these connections: after each attempt that failed, the next one is made with, or again
 * without, tables that lead past such rules. They match the local port of that one connection, so that other processes
 * of the node keep the rules, which they need for a ClusterIP. No rule leads past an address that a mode bound to the
 * node, nor past its virtual server: these are removed, and the first sync restores what belongs there.
 */
export class ApiReach implements DialWatch {
  readonly #options: ApiReachOptions
  readonly #tables: string
  #endpoints: readonly ApiEndpoint[] = []
  /** Of the attempt that is under way, and of connections that were made past rules. */
  #bypasses: readonly NftClient[] = []
  #attempts = 0
  #opened = 0
  /** Where a connection was made past rules, and none without. */
  #captured: readonly [string, number] | undefined
  #over: boolean

  constructor(options: ApiReachOptions) {
    this.#options = options
    this.#over = options.openTransport === undefined
    // The kernel lets no two sockets own tables of one name, and other proxies may start beside this one.
    const suffix = Math.floor(options.random() * 0x1_0000_0000)
    this.#tables = `kprobe-api-${suffix.toString(16).padStart(8, '0')}`
  }

  reaching(addresses: readonly string[], port: number): void {
    const now = sortedEndpoints(dialledEndpoints(addresses, port))
    const isIn = (list: readonly ApiEndpoint[], { ip, port }: ApiEndpoint) =>
      list.some(its => its.ip === ip && its.port === port)
    const before = this.#endpoints
    // Those of the latest resolution come last, new or not: the one in use is never the one forgotten.
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

  /** The kernel holds what this process wants, which captures no API server; rules of others may. */
  async synced(): Promise<void> {
    const { connects, log } = this.#options
    const isFree = this.#captured === undefined || (await connects(...this.#captured))
    if (isFree) await this.close()
    if (this.#captured === undefined) return
    log.warn({ endpoints: this.#texts() }, isFree ? RELEASED : STILL_CAPTURED)
  }

  /** Nothing of it stays in the kernel. */
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
      // What is freed after the first sync may be what that has written.
      if (this.#over) return
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

/** Those of DialWatch as endpoints. */
export function dialledEndpoints(addresses: readonly string[], port: number): readonly ApiEndpoint[] {
  return addresses.flatMap(text => {
    const ip = plainIp(text)
    return ip === undefined ? [] : [{ ip, port }]
  })
}

/** Undefined for what is no address. Connections to an IPv4-mapped one are packets of IPv4. */
function plainIp(text: string): Ip | undefined {
  const ip = parseIp(text)
  return ip !== undefined && isIpv4Mapped(ip) ? ip.slice(12) : ip
}

const OPENED = 'cannot connect to the API server; this attempt bypasses the Service rules of this node'
const NOT_FREED =
  'cannot read or remove what a proxy mode holds at the address of the API server; if that captures the connections, run `kprobe cleanup` and restart'
const RELEASED =
  'reached the API server past the Service rules that were in the kernel; they are replaced, and the bypass is removed'
const STILL_CAPTURED =
  'reached the API server past Service rules that are not of this process and still capture it; the bypass stays; remove the other proxy, or what it left with `kprobe cleanup`'
const FAILED =
  'cannot bypass the Service rules of this node; if they capture the connections to the API server, run `kprobe cleanup` and restart'
