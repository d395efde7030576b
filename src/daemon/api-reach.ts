import type { Clock } from '../base/clock.ts'
import { formatIpPort, type Ip, isIpv4Mapped, parseIp } from '../base/ip.ts'
import { errorOf } from '../base/thrown.ts'
import type { Config } from '../config/config.ts'
import { apiBypass } from '../dataplane/common/api-bypass.ts'
import { createNftClient, type NftClient } from '../kernel/nft/client.ts'
import { type ApiEndpoint, sortedEndpoints } from '../model/api-server.ts'
import type { Transport } from '../netlink/transport.ts'
import type { DialWatch } from '../source/kube/client/http-client.ts'
import type { DaemonIo } from './io.ts'

/** For the daemon of a configuration: one that only reads, or runs once, writes no way past anything. */
export function apiReachOf(
  { backend, once }: Pick<Config, 'backend' | 'once'>,
  { openTransport, ...io }: Pick<DaemonIo, 'clock' | 'log' | 'random' | 'openTransport'>,
  changed: ApiReachOptions['changed'],
): ApiReach {
  const writes = backend === 'netlink' && !once
  return new ApiReach({ ...io, openTransport: writes ? openTransport : undefined, changed })
}

export interface ApiReachOptions {
  readonly clock: Clock
  readonly log: Readonly<Record<'debug' | 'warn', (facts: object, text: string) => void>>
  /** Uniform in [0, 1). */
  readonly random: () => number
  /** Opens a socket to nf_tables; undefined where nothing may be written. */
  readonly openTransport: (() => Transport) | undefined
  /** All endpoints that were dialled, whenever there is another one. */
  readonly changed: (endpoints: readonly ApiEndpoint[]) => void
}

/** Of a name that resolves to others and others again, the latest. */
const ENDPOINTS_MAX = 16

/**
 * Follows where this process reaches the API server. Until the first sync, rules that a former process left in the
 * kernel may capture these connections: after each attempt that failed, the next one is made with, or again without,
 * tables that lead past such rules. With a ClusterIP of the cluster the rules are needed, so that neither way is kept.
 */
export class ApiReach implements DialWatch {
  readonly #options: ApiReachOptions
  readonly #table: string
  #endpoints: readonly ApiEndpoint[] = []
  #bypass: NftClient | undefined
  #over: boolean

  constructor(options: ApiReachOptions) {
    this.#options = options
    this.#over = options.openTransport === undefined
    // The kernel lets no two sockets own tables of one name, and other proxies may start beside this one.
    const suffix = Math.floor(options.random() * 0x1_0000_0000)
    this.#table = `kprobe-api-${suffix.toString(16).padStart(8, '0')}`
  }

  reaching(addresses: readonly string[], port: number): void {
    const isKnown = ({ ip }: ApiEndpoint) => this.#endpoints.some(its => its.ip === ip && its.port === port)
    const fresh = dialledEndpoints(addresses, port).filter(endpoint => !isKnown(endpoint))
    if (fresh.length === 0) return
    this.#endpoints = [...this.#endpoints, ...fresh].slice(-ENDPOINTS_MAX)
    this.#options.changed(sortedEndpoints(this.#endpoints))
  }

  async failed(): Promise<void> {
    if (this.#over) return
    if (this.#bypass === undefined) await this.#open()
    else await this.#remove()
  }

  /** The kernel holds what this process wants, which captures no API server. */
  async synced(): Promise<void> {
    this.#over = true
    if (this.#bypass === undefined) return
    await this.#remove()
    const endpoints = this.#texts()
    this.#options.log.warn({ endpoints }, RELEASED)
  }

  /** Nothing of it stays in the kernel. */
  async close(): Promise<void> {
    this.#over = true
    await this.#remove()
  }

  async #open(): Promise<void> {
    const { openTransport, clock, log } = this.#options
    const transaction = apiBypass(this.#table, this.#endpoints)
    if (openTransport === undefined || transaction.length === 0) return
    try {
      const client = createNftClient({ transport: openTransport(), clock })
      this.#bypass = client
      const { outcome, failures } = await client.commit(transaction)
      if (outcome === 'committed') log.debug({ table: this.#table, endpoints: this.#texts() }, OPENED)
      else throw failures[0]?.error ?? new Error(`the kernel's answer: ${outcome}`)
    } catch (thrown) {
      const isWanted = !this.#over
      this.#over = true
      await this.#remove()
      if (isWanted) log.warn({ err: errorOf(thrown) }, FAILED)
    }
  }

  async #remove(): Promise<void> {
    const bypass = this.#bypass
    this.#bypass = undefined
    await bypass?.close()
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

const OPENED = 'cannot connect to the API server; the next attempt bypasses the Service rules of this node'
const RELEASED =
  'reached the API server past the Service rules that were in the kernel; they are replaced, and the bypass is removed'
const FAILED =
  'cannot bypass the Service rules of this node; if they capture the connections to the API server, run `kprobe cleanup` and restart'
