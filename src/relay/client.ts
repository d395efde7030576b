import type { ApiAddress, RelayAddress } from '../base/api-address.ts'
import { backoffMs, type Cancel, type Clock } from '../base/clock.ts'
import {
  type ApiClient,
  ApiError,
  type ApiRequest,
  type ApiResponse,
  type CredentialsEnd,
} from '../source/kube/api-client.ts'
import { isOlder } from '../source/kube/object-index.ts'
import type { KernelState } from '../source/source.ts'
import { endingBody, TOO_LARGE, UNSERVED } from './bodies.ts'
import { type RelayLink, relayName } from './connection.ts'
import { inOrderFor, type RelayNames } from './names.ts'
import { ReportSender } from './node-report.ts'
import { Reading, RelayRefusal } from './reading.ts'
import { FRESH, METADATA, PROTOCOL, RELAYED } from './types.ts'
import { type Wanted, wantedOf } from './wanted.ts'

interface RelayClientOptions {
  readonly relays: readonly RelayAddress[]
  /** Relays that DNS names lead to, besides these. */
  readonly names?: RelayNames | undefined
  readonly nodeName: string
  /** The zone of the node, whose relays come first; empty or absent for none. */
  readonly zone?: string
  /** Empty for the proxy without a name. */
  readonly proxyName: string
  /** The API server: for all that relays do not serve and, with `fallsBack`, while none of them answers. */
  readonly kube: ApiClient
  readonly fallsBack: boolean
  /** `name` is the DNS name that led to the address. */
  readonly link: (address: ApiAddress, name: string | undefined) => RelayLink
  readonly clock: Clock
  readonly random: () => number
  /** Wall-clock milliseconds at which this client began: reports of an earlier one are older. */
  readonly startedMs: number
  /** Gets a line when something begins. */
  readonly say: (text: string) => void
}

interface Question {
  readonly wanted: Wanted
  readonly isFresh: boolean
  /** The node takes nothing from the answer. */
  readonly isProbe?: boolean
}

interface Peer {
  readonly address: ApiAddress
  readonly name: string
  readonly dnsName: string | undefined
  readonly link: RelayLink
  readings: number
  failures: number
  /** Monotonic milliseconds before which it is not asked. */
  restsUntilMs: number
}

/** A node with a state reads from the API server once no relay has answered for one to two times this long. */
const PATIENCE_MS = 30_000
/** A node without a state waits only so long. */
const FIRST_PATIENCE_MS = 3_000
/** The status of a relay that serves, but not from the state of the node. */
const ANOTHER_HISTORY_STATUS = 410
const REST = { minMs: 500, maxMs: 30_000 } as const

/**
 * Reads lists and watches from the first relay that answers, in an order of this node's own, and passes everything else to the
 * API server. A reflector resumes at another relay, or at the API server, by the version that it holds: versions of one
 * cluster are the same everywhere.
 */
export class RelayClient implements ApiClient {
  readonly server: string
  readonly #options: RelayClientOptions
  #peers: readonly Peer[] = []
  readonly #readings = new Set<Reading>()
  /** Watches at the API server that end when relays answer again. */
  readonly #direct = new Set<() => void>()
  /** The cluster of the relay that the state of a collection is from, by path. */
  readonly #clusters = new Map<string, string>()
  /** The revision that the node holds of a collection, by path: no older state is taken of a relay that is behind. */
  readonly #positions = new Map<string, string>()
  #downSinceMs: number | undefined
  #patienceMs = FIRST_PATIENCE_MS
  #isDirect = false
  #hasState = false
  #saidDown = false
  /** Paths of collections of which relays lack most objects, until a relay resumes a watch of them. */
  readonly #doubted = new Set<string>()
  /**
   * Collections that the API server has listed, and watches next: a wrong relay would cause one list after the other.
   */
  readonly #confirmed = new Set<string>()
  #cancelProbe: Cancel = () => undefined
  #isClosed = false
  readonly #reports: ReportSender

  constructor(options: RelayClientOptions) {
    this.#options = options
    this.#reports = new ReportSender({
      ...options,
      cluster: () => this.#clusters.get(RELAYED.Service.path) ?? '',
      isDirect: () => this.#isDirect,
      send: text => this.reporting?.report(text),
    })
    const { kube, names } = options
    this.server = kube.server
    this.#order()
    if (names !== undefined) names.changed = () => this.#order()
    if (kube.authorities !== undefined) this.authorities = () => kube.authorities?.() ?? Promise.resolve([])
  }

  readonly authorities?: () => Promise<readonly string[]>

  async credentialsEnd(): Promise<CredentialsEnd> {
    return (await this.#options.kube.credentialsEnd?.()) ?? { tokenMs: undefined, certificateMs: undefined }
  }

  /** The API server is asked instead of relays. */
  get isDirect(): boolean {
    return this.#isDirect
  }

  /** Watches at relays whose names no longer lead to them continue to their ends. */
  #order(): void {
    const { relays, names, nodeName, zone = '', link } = this.#options
    const before = this.#peers
    const peers = new Map<string, Peer>()
    for (const { address, name: dnsName } of inOrderFor({ name: nodeName, zone }, [
      ...relays,
      ...(names?.addresses ?? []),
    ])) {
      const name = relayName(address)
      const peer = peers.get(name) ?? before.find(known => known.name === name && known.dnsName === dnsName)
      const made = {
        address,
        name,
        dnsName,
        readings: 0,
        failures: 0,
        restsUntilMs: Number.NEGATIVE_INFINITY,
      }
      peers.set(name, peer ?? { ...made, link: link(address, dnsName) })
    }
    this.#peers = [...peers.values()]
    for (const peer of before) this.#closeUnused(peer)
  }

  #closeUnused(peer: Peer): void {
    if (peer.readings === 0 && !this.#peers.includes(peer)) peer.link.close()
  }

  /** Reports to the relay that this node reads Services from, and with every request to any of them. */
  report(state: KernelState): void {
    this.#reports.update(state)
  }

  /** The watch that reports go with: that of Services, or else another one. */
  get reporting(): Reading | undefined {
    const watches = [...this.#readings].filter(({ isWatch }) => isWatch)
    return watches.find(({ path }) => path === RELAYED.Service.path) ?? watches[0]
  }

  async send(request: ApiRequest): Promise<ApiResponse> {
    const wanted = wantedOf(request)
    if (wanted === undefined) return await this.#options.kube.send(request)
    if (wanted !== 'metadata' && wanted.what === 'watch')
      this.#positions.set(wanted.type.path, wanted.revision)
    if (this.#isDirect) return await this.#askDirectly(request)
    if (request.isDirect === true) return await this.#confirm(request)
    // The relay compares with the API server for all nodes.
    if (wanted === 'metadata') return UNSERVED
    const { what, type } = wanted
    if (what === 'watch' && this.#confirmed.delete(type.path)) return await this.#askDirectly(request)
    const answer = await this.#askRelays(wanted, request)
    if (what === 'watch' && answer?.status === 200) this.#doubted.delete(type.path)
    return answer ?? (await this.#askDirectly(request))
  }

  async close(): Promise<void> {
    this.#isClosed = true
    this.#cancelProbe()
    this.#reports.stop()
    this.#options.names?.close()
    for (const reading of [...this.#readings]) reading.end()
    for (const { link } of this.#peers) link.close()
    await this.#options.kube.close()
  }

  /** Undefined when it is time to read from the API server. */
  async #askRelays(wanted: Wanted, request: ApiRequest): Promise<ApiResponse | undefined> {
    const { clock, fallsBack, names } = this.#options
    await names?.ready()
    const reasons: string[] = []
    let behind = 0
    let asked = 0
    // A stale relay is better than none, and worse than the API server.
    for (const isFresh of fallsBack ? [true] : [true, false])
      for (const peer of this.#peers) {
        if (clock.nowMs() < peer.restsUntilMs) continue
        asked++
        try {
          const response = await this.#reading(peer, { wanted, isFresh }, request.signal).open()
          this.#answered(peer)
          return response
        } catch (error) {
          if (!(error instanceof RelayRefusal)) throw error
          reasons.push(`${peer.name}: ${error.message}`)
          if (error.isBehind) behind++
        }
      }
    names?.hurry()
    reasons.push(...(names?.troubles ?? []))
    this.#failed(reasons)
    if (this.#isDirect) return undefined
    if (asked > 0 && behind === asked) return TOO_LARGE
    throw new ApiError(
      'unreachable',
      `no relay answers: ${reasons.join('; ') || 'all of them wait for a retry'}`,
    )
  }

  #reading(peer: Peer, { wanted, isFresh, isProbe = false }: Question, signal: AbortSignal): Reading {
    const { clock, random, nodeName, proxyName, fallsBack } = this.#options
    const { path } = wanted.type
    const atLeast = wanted.what === 'watch' ? undefined : this.#positions.get(path)
    const report = this.#reports.text()
    const metadata = {
      ...(report === undefined ? {} : { [METADATA.report]: report }),
      ...tokenOf(wanted.revision, this.#clusters.get(path) ?? ''),
      ...(atLeast === undefined ? {} : { [METADATA.atLeast]: atLeast }),
      [METADATA.proxy]: proxyName,
      [METADATA.protocol]: PROTOCOL,
      ...(isFresh ? { [METADATA.age]: FRESH } : {}),
    }
    const reading: Reading = new Reading({
      wanted,
      link: peer.link,
      clock,
      random,
      nodeName,
      metadata,
      signal,
      cluster: identifier => {
        if (wanted.what !== 'watch' && !isProbe) this.#clusters.set(path, identifier)
      },
      advanced: revision => {
        if (isOlder(this.#positions.get(path) ?? '', revision)) this.#positions.set(path, revision)
      },
      isElsewhere: () => {
        if (!isProbe) this.#positions.delete(path)
      },
      ended: why => {
        this.#readings.delete(reading)
        peer.readings--
        this.#closeUnused(peer)
        // Without a fallback, a stale relay does not rest: the next request to it accepts stale data.
        if (why !== undefined && (fallsBack || !why.isStale)) this.#rest(peer)
      },
    })
    this.#readings.add(reading)
    peer.readings++
    return reading
  }

  #answered(peer: Peer): void {
    peer.failures = 0
    this.#downSinceMs = undefined
    this.#hasState = true
    if (!this.#saidDown) return
    this.#saidDown = false
    this.#options.say(`${peer.name} answers; reading from it`)
  }

  #rest(peer: Peer): void {
    const { clock, random } = this.#options
    // Streams of one connection end together: that is one failure.
    if (clock.nowMs() < peer.restsUntilMs) return
    peer.restsUntilMs = clock.nowMs() + backoffMs(++peer.failures, { ...REST, random })
  }

  #failed(reasons: readonly string[]): void {
    const { clock, random, fallsBack, say } = this.#options
    const nowMs = clock.nowMs()
    if (this.#downSinceMs === undefined) {
      this.#downSinceMs = nowMs
      this.#patienceMs = (this.#hasState ? PATIENCE_MS : FIRST_PATIENCE_MS) * (1 + random())
    }
    if (!this.#saidDown && reasons.length > 0) {
      this.#saidDown = true
      say(`no relay answers; the last known state stays in use: ${reasons.join('; ')}`)
    }
    if (!fallsBack || this.#isDirect || nowMs - this.#downSinceMs < this.#patienceMs) return
    this.#isDirect = true
    say(
      `no relay has answered for ${Math.round((nowMs - this.#downSinceMs) / 1_000)} s; reading from the API server`,
    )
    this.#probeLater()
  }

  async #askDirectly(request: ApiRequest): Promise<ApiResponse> {
    const { kube } = this.#options
    this.#hasState = true
    const wanted = wantedOf(request)
    if (wanted !== 'metadata' && wanted !== undefined && wanted.what !== 'watch')
      this.#clusters.delete(wanted.type.path)
    if (!request.longLived) return await kube.send(request)
    const controller = new AbortController()
    const abort = (): void => controller.abort()
    request.signal.addEventListener('abort', abort)
    if (request.signal.aborted) abort()
    this.#direct.add(abort)
    const left = (): void => {
      this.#direct.delete(abort)
      request.signal.removeEventListener('abort', abort)
    }
    try {
      const response = await kube.send({ ...request, signal: controller.signal })
      const isOurs = (): boolean => controller.signal.aborted && !request.signal.aborted
      return { ...response, body: endingBody(response.body, isOurs, left) }
    } catch (error) {
      left()
      throw error
    }
  }

  /** Holds what is known until the API server has answered. */
  async #confirm(request: ApiRequest): Promise<ApiResponse> {
    const [path = ''] = request.path.split('?')
    if (!this.#doubted.has(path))
      this.#options.say(
        `a relay lacks most of the known objects of ${path}; none of them is removed before the API server confirms it`,
      )
    this.#doubted.add(path)
    const response = await this.#askDirectly(request)
    if (response.status === 200) this.#confirmed.add(path)
    return response
  }

  #probeLater(): void {
    const { clock, random } = this.#options
    // Mean time between two checks whether a relay answers again: a minute. Nodes do not come back together.
    this.#cancelProbe = clock.after(60_000 * (0.5 + random()), () => void this.#probe())
  }

  /** Goes back to relays as soon as one of them serves. Watches end in good order, and are resumed there. */
  async #probe(): Promise<void> {
    this.#options.names?.hurry()
    for (const peer of this.#peers) {
      if (this.#isClosed) return
      if (!(await this.#serves(peer)) || this.#isClosed) continue
      this.#isDirect = false
      this.#saidDown = false
      this.#downSinceMs = undefined
      peer.restsUntilMs = Number.NEGATIVE_INFINITY
      this.#options.say(`${peer.name} answers again; reading from it instead of the API server`)
      for (const end of [...this.#direct]) end()
      return
    }
    if (!this.#isClosed) this.#probeLater()
  }

  /** Reads the Node of this node, as a reflector would: a relay that refuses that would refuse the rest as well. */
  async #serves(peer: Peer): Promise<boolean> {
    const name = this.#options.nodeName
    const wanted: Wanted = { type: RELAYED.Node, name, what: 'list', revision: '', seconds: undefined }
    const { signal } = new AbortController()
    try {
      const { status } = await this.#reading(peer, { wanted, isFresh: true, isProbe: true }, signal).open()
      return status === 200 || status === ANOTHER_HISTORY_STATUS
    } catch (error) {
      if (error instanceof RelayRefusal) return false
      throw error
    }
  }
}

/** The metadata by which a node resumes. */
function tokenOf(revision: string, cluster: string): Readonly<Record<string, string>> {
  return revision === '' ? {} : { [METADATA.revision]: revision, [METADATA.cluster]: cluster }
}
