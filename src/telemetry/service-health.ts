import { type Clock, Pacer } from '../base/clock.ts'
import { PersistentMap } from '../base/collections.ts'
import { FAMILIES, type Family, formatIpPort, type Ip, parseIp } from '../base/ip.ts'
import { type ConnectionLimits, type Crowd, type OverShare, Shares, sharesOf } from '../base/shares.ts'
import { count } from '../base/text.ts'
import { type HttpAnswer, HttpConnections, JSON_TYPE } from '../http/connections.ts'
import { Listener } from '../http/server.ts'
import type { FrontendTable, HealthCheck, NodePortAddresses, ServiceFrontends } from '../model/frontend.ts'
import type { ServiceKey } from '../model/service.ts'
import { namespaceOf } from '../model/service.ts'

export type ServiceHealthNews =
  | { readonly kind: 'listening'; readonly service: ServiceKey; readonly address: string }
  /** Reported once until it listens, or fails otherwise. */
  | {
      readonly kind: 'failed'
      readonly service: ServiceKey
      readonly port: number
      readonly address: string
      readonly error: Error
      readonly retryMs: number
    }
  | { readonly kind: 'trouble'; readonly error: Error }
  /** Connections that exceeded a share were closed; reported once a minute at most. */
  | { readonly kind: 'crowded'; readonly crowd: Crowd }

interface ServiceHealthOptions {
  readonly clock: Clock
  /** Tests whether this proxy is healthy, regardless of its Node. */
  readonly healthy: () => boolean
  /** Maximum number of listening sockets. Above it, Services of the namespace with the most sockets wait. */
  readonly listenersMax: number
  readonly connectionsMax: number
  readonly report: (news: ServiceHealthNews) => void
}

const RETRY_MS = 5_000
/** Maximum number of addresses that one round retries. */
const RETRIES_MAX = 64

/** Divides `connections`: each Service has a share, and a client has the same parts of a Service's share and of all. */
export function healthCheckShares(connections: number): ConnectionLimits {
  const perService = Math.min(64, Math.ceil(connections / 4))
  return { ...partsOf(connections), perService: partsOf(perService) }
}

/** Gives a prefix half and an address a quarter, because one address may check many Services. */
function partsOf(connections: number): ConnectionLimits {
  const [perPrefix, perAddress] = [Math.ceil(connections / 2), Math.ceil(connections / 4)]
  return { ...sharesOf(connections), perPrefix, perAddress }
}

/**
 * Serves the health check node ports of all Services with policy Local. The cost of an update follows the changes of the
 * table. An address that is in use does not affect the others.
 */
export class ServiceHealth {
  readonly #options: ServiceHealthOptions
  readonly #connections: HttpConnections
  readonly #services = new Map<ServiceKey, Served>()
  readonly #failed = new Set<Place>()
  readonly #listeners: Shares<Place>
  #table: FrontendTable | undefined
  readonly #retries: Pacer
  #closed = false

  constructor(options: ServiceHealthOptions) {
    this.#options = options
    this.#listeners = new Shares(options.listenersMax)
    this.#retries = new Pacer({ clock: options.clock, run: () => this.#again() })
    this.#connections = new HttpConnections({
      clock: options.clock,
      isLenient: true,
      limits: healthCheckShares(options.connectionsMax),
      crowded: crowd => options.report({ kind: 'crowded', crowd }),
      failed: error => options.report({ kind: 'trouble', error }),
    })
  }

  get counts(): { readonly listening: number; readonly failed: number } {
    return { listening: this.#listeners.held, failed: this.#failed.size }
  }

  get overShare(): OverShare {
    return this.#connections.overShare
  }

  /** Takes the table that the kernel holds now. Addresses of the node may have changed, too. */
  update(table: FrontendTable): void {
    if (this.#closed) return
    const before = this.#table
    this.#table = table
    const changed = PersistentMap.changes(
      before?.services ?? PersistentMap.empty<ServiceFrontends>(),
      table.services,
    )
    const keys =
      before?.nodePorts === table.nodePorts ? changed : [...new Set([...changed, ...this.#services.keys()])]
    // A port may move from one Service to another, so that all are freed before any is taken.
    for (const key of keys) this.#release(key, table)
    for (const key of keys) this.#serve(key, table)
  }

  close(): void {
    this.#closed = true
    void this.#retries.stop()
    for (const served of this.#services.values()) for (const place of served.places.values()) this.#end(place)
    this.#services.clear()
    this.#connections.close()
  }

  #release(key: ServiceKey, table: FrontendTable): void {
    const served = this.#services.get(key)
    if (served === undefined) return
    const check = table.services.get(key)?.healthCheck
    const wanted = check === undefined ? NOWHERE : this.#placesOf(check, table)
    for (const [name, place] of served.places) {
      if (wanted.has(name)) continue
      this.#end(place)
      served.places.delete(name)
    }
    if (check === undefined) this.#services.delete(key)
  }

  #serve(key: ServiceKey, table: FrontendTable): void {
    const check = table.services.get(key)?.healthCheck
    if (check === undefined) return
    const served = this.#services.get(key) ?? { service: key, check, places: new Map() }
    served.check = check
    this.#services.set(key, served)
    for (const [name, { family, ip }] of this.#placesOf(check, table)) {
      if (served.places.has(name)) continue
      const place: Place = { name, served, family, ip, port: check.port, listener: undefined, complaint: '' }
      served.places.set(name, place)
      this.#listen(place)
    }
  }

  #listen(place: Place): void {
    const { ip, port, served } = place
    const { report } = this.#options
    if (!this.#hasRoom(place)) return
    place.listener = new Listener({
      at: { ip, port },
      accept: socket => this.#connections.accept(socket, () => this.#answer(place), served.service),
      listening: () => {
        place.complaint = ''
        report({ kind: 'listening', service: served.service, address: place.name })
      },
      failed: error => {
        this.#listeners.leave(place)
        place.listener = undefined
        this.#fails(place, error)
      },
      trouble: error => report({ kind: 'trouble', error }),
    })
  }

  /** Reserves room for a place. Without free room, a place of the namespace with the most places loses its own. */
  #hasRoom(place: Place): boolean {
    const { service } = place.served
    const admission = this.#listeners.admit(place, [{ name: namespaceOf(service) }, { name: service }])
    const loser = admission.kind === 'refused' ? place : admission.kind === 'evicted' && admission.victim
    if (loser !== false) {
      void loser.listener?.close()
      loser.listener = undefined
      this.#fails(loser, this.#noRoom())
    }
    if (admission.kind === 'refused') return false
    this.#listeners.mark(place, 'busy')
    return true
  }

  #noRoom(): Error {
    const room = count(this.#options.listenersMax, 'socket')
    return new Error(
      `no free descriptor: this process has ${room} for health check node ports; raise the limit of open files (RLIMIT_NOFILE)`,
    )
  }

  #fails(place: Place, error: Error): void {
    this.#failed.add(place)
    this.#retries.wake(RETRY_MS)
    if (place.complaint === error.message) return
    place.complaint = error.message
    const { served, port, name } = place
    const failed = { kind: 'failed', service: served.service, port, address: name, error } as const
    const rounds = Math.ceil(this.#failed.size / RETRIES_MAX)
    this.#options.report({ ...failed, retryMs: rounds * RETRY_MS })
  }

  #again(): number | undefined {
    const due = [...this.#failed].slice(0, RETRIES_MAX)
    for (const place of due) this.#failed.delete(place)
    for (const place of due) this.#listen(place)
    return this.#failed.size > 0 ? RETRY_MS : undefined
  }

  #end(place: Place): void {
    this.#failed.delete(place)
    if (place.listener === undefined) return
    this.#listeners.leave(place)
    void place.listener.close()
    place.listener = undefined
  }

  /** Gives the addresses to listen at: those of node ports, in the families of the Service. */
  #placesOf(check: HealthCheck, { nodePorts }: FrontendTable): ReadonlyMap<string, Where> {
    const places = new Map<string, Where>()
    for (const family of FAMILIES) {
      if (check.local[family] === undefined) continue
      for (const ip of ipsOf(nodePorts[family], family))
        places.set(formatIpPort(ip, check.port), { family, ip })
    }
    return places
  }

  #answer({ served: { service, check }, family }: Place): HttpAnswer {
    return serviceHealthAnswer(service, check.local[family] ?? 0, this.#options.healthy())
  }
}

interface Served {
  readonly service: ServiceKey
  check: HealthCheck
  readonly places: Map<string, Place>
}

interface Place {
  readonly name: string
  readonly served: Served
  readonly family: Family
  readonly ip: Ip
  readonly port: number
  listener: Listener | undefined
  complaint: string
}

type Where = { readonly family: Family; readonly ip: Ip }

const NOWHERE: ReadonlyMap<string, Where> = new Map()
const EVERYWHERE: Readonly<Record<Family, string>> = { IPv4: '0.0.0.0', IPv6: '::' }

function ipsOf(addresses: NodePortAddresses, family: Family): readonly Ip[] {
  if (addresses.kind === 'only') return addresses.ips
  const ip = parseIp(EVERYWHERE[family])
  return ip === undefined ? [] : [ip]
}

/** Makes kube-proxy's answer byte for byte: indented with tabs, without a final line break. */
export function serviceHealthAnswer(service: ServiceKey, local: number, healthy: boolean): HttpAnswer {
  const slash = service.indexOf('/')
  const body = {
    service: { namespace: service.slice(0, slash), name: service.slice(slash + 1) },
    localEndpoints: local,
    serviceProxyHealthy: healthy,
  }
  return {
    status: local > 0 && healthy ? 200 : 503,
    headers: { ...JSON_TYPE, 'X-Load-Balancing-Endpoint-Weight': String(local) },
    body: JSON.stringify(body, undefined, '\t'),
  }
}
