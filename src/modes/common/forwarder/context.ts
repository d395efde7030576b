import type { Clock } from '../../../base/clock.ts'
import type { Backend } from '../../../model/frontend.ts'
import type { ServiceKey } from '../../../model/service.ts'
import { namespaceOf } from '../../../model/service.ts'
import type { ModeEvent, ProcessRoom } from '../../mode.ts'
import type { Balancer, ListName } from './forwarder.ts'

export interface ForwarderLimits {
  /** Listening sockets of all Services. */
  readonly listeners: number
  /** Concurrent TCP connections of all Services; each takes two sockets. */
  readonly connections: number
  /** Concurrent UDP clients of all Services; each takes a socket. */
  readonly sessions: number
  /** Clients that one Service port with affinity remembers. */
  readonly affinityClients: number
  /** The timeout of each attempt to reach an endpoint for one connection, milliseconds. */
  readonly connectTimeoutsMs: readonly number[]
  /** A UDP client is forgotten this long after its last datagram in either direction, milliseconds. */
  readonly udpIdleMs: number
  /** Datagrams of one client that wait for its socket; further ones are lost. */
  readonly datagramsWaiting: number
  /** Bytes that wait to be sent on one UDP socket; further datagrams are lost. */
  readonly datagramBytesQueued: number
}

export const DEFAULT_LIMITS: ForwarderLimits = {
  listeners: 8_192,
  connections: 4_096,
  sessions: 4_096,
  affinityClients: 10_000,
  connectTimeoutsMs: [250, 500, 1_000, 2_000],
  udpIdleMs: 30_000,
  datagramsWaiting: 16,
  datagramBytesQueued: 256 * 1024,
}

/** Four buffers of 64 KiB, for a connection whose two ends both do not read. */
const CONNECTION_BYTES = 256 * 1024
/** The minimum of the connection limit that memory alone sets. */
const LEAST = 64

/**
 * Computes limits within the forwarders' descriptors and half of the memory. A listener takes one descriptor, a
 * connection two, a UDP client one. They are divided in the proportions of the default limits. Undefined: no bounds.
 */
export function limitsWithin(room: ProcessRoom | undefined): ForwarderLimits {
  const { descriptors = Infinity, memoryBytes = Infinity } = room ?? {}
  const { listeners, connections, sessions } = DEFAULT_LIMITS
  const part = descriptors / (listeners + 2 * connections + sessions)
  const within = (limit: number, room: number) => Math.min(limit, Math.floor(room))
  const inMemory = Math.max(LEAST, memoryBytes / 2 / CONNECTION_BYTES)
  return {
    ...DEFAULT_LIMITS,
    listeners: within(listeners, part * listeners),
    connections: within(connections, Math.min(part * connections, inMemory)),
    sessions: within(sessions, part * sessions),
  }
}

/**
 * Picks the Services that give way so that the listeners of the others fit into `limit`; a Service gives way
 * as a whole. `wanted` is the number of listeners of each Service; of equal Services the first one has
 * priority. Namespaces have equal shares, and the Services of a namespace are ordered by size. The unused
 * share of a namespace goes to the others.
 */
export function beyondShares(wanted: ReadonlyMap<ServiceKey, number>, limit: number): readonly ServiceKey[] {
  const total = [...wanted.values()].reduce((sum, listeners) => sum + listeners, 0)
  if (total <= limit) return []
  const held = new Map<string, number>()
  const bySize = [...wanted].toSorted(([, a], [, b]) => a - b)
  const ranked = bySize.map(([service, listeners]) => {
    const namespace = namespaceOf(service)
    const rank = (held.get(namespace) ?? 0) + listeners
    held.set(namespace, rank)
    return { service, listeners, rank }
  })
  const beyond: ServiceKey[] = []
  let free = limit
  for (const { service, listeners } of ranked.toSorted((a, b) => a.rank - b.rank)) {
    if (listeners > free) beyond.push(service)
    else free -= listeners
  }
  return beyond
}

type Resource = 'connections' | 'sessions'

/** The share of the reported number below which usage must fall before exhaustion is reported again. */
const EMPTY_AGAIN = 0.9

export interface Holder {
  /** The name of the Service port; the part before the first slash is the namespace. */
  readonly name: string
  held: number
}

export interface Exhaustion {
  readonly resource: Resource
  readonly limit: number
  /** The Service port, or `namespace shop`, that exceeds its share; undefined for the whole resource. */
  readonly holder: string | undefined
}

/**
 * Counts sockets against a limit, so that clients cannot exhaust the process. A Service port, and a namespace
 * as a whole, may hold at most as many sockets as are free: one holder gets at most half of all, two get a
 * third each, and there is always room for another one.
 */
export class Usage {
  readonly #resource: Resource
  readonly #limit: number
  readonly #exhausted: (exhaustion: Exhaustion) => void
  /** The number that each holder had at the last report; undefined is the whole. */
  readonly #reported = new Map<string | undefined, number>()
  readonly #namespaces = new Map<string, number>()
  #held = 0
  #refused = 0

  constructor(resource: Resource, limit: number, exhausted: (exhaustion: Exhaustion) => void) {
    this.#resource = resource
    this.#limit = limit
    this.#exhausted = exhausted
  }

  get held(): number {
    return this.#held
  }

  get refused(): number {
    return this.#refused
  }

  /** Takes one. Gives false and takes nothing when the share or the resource is used up. */
  take(holder: Holder): boolean {
    const free = this.#limit - this.#held
    const namespace = namespaceOf(holder.name)
    const together = this.#namespaces.get(namespace) ?? 0
    if (together >= free) {
      this.#refused++
      if (free === 0) this.#report(undefined, this.#limit)
      else if (holder.held >= free) this.#report(holder.name, holder.held)
      else this.#report(textOf(namespace), together)
      return false
    }
    this.#held++
    holder.held++
    this.#namespaces.set(namespace, together + 1)
    return true
  }

  give(holder: Holder): void {
    const namespace = namespaceOf(holder.name)
    const together = (this.#namespaces.get(namespace) ?? 1) - 1
    this.#held--
    holder.held--
    if (together > 0) this.#namespaces.set(namespace, together)
    else this.#namespaces.delete(namespace)
    if (this.#reported.size === 0) return
    this.#forget(undefined, this.#held)
    this.#forget(holder.name, holder.held)
    this.#forget(textOf(namespace), together)
  }

  #forget(holder: string | undefined, held: number): void {
    if (held < (this.#reported.get(holder) ?? 0) * EMPTY_AGAIN) this.#reported.delete(holder)
  }

  #report(holder: string | undefined, limit: number): void {
    if (this.#reported.has(holder)) return
    this.#reported.set(holder, limit)
    this.#exhausted({ resource: this.#resource, limit, holder })
  }
}

function textOf(namespace: string): string {
  return `namespace ${namespace}`
}

/** The state that all forwarders of one process share. */
export interface ForwarderContext {
  readonly clock: Clock
  readonly limits: ForwarderLimits
  readonly connections: Usage
  readonly sessions: Usage
  readonly own: OwnSockets
  /** Tests whether our own rules catch packets to this back end. A connection there would be forwarded again. */
  readonly isCaptured: (backend: Backend, protocol: 'TCP' | 'UDP') => boolean
  /** Gets failures that an operator may want to know. */
  readonly report: (event: ModeEvent) => void
}

type ContextOptions = Pick<ForwarderContext, 'clock' | 'limits' | 'isCaptured' | 'report'>

/** Makes the state of a process without connections. */
export function forwarderContext(options: ContextOptions): ForwarderContext {
  const { limits, report } = options
  const usage = (resource: Resource) =>
    new Usage(resource, limits[resource], ({ limit, holder: share = 'all Services' }) =>
      report(notice('warn', EXHAUSTED[resource], { limit, share })),
    )
  return {
    ...options,
    connections: usage('connections'),
    sessions: usage('sessions'),
    own: new OwnSockets(),
  }
}

type Notice = Extract<ModeEvent, { readonly kind: 'notice' }>

function notice(level: Notice['level'], text: string, facts: Notice['facts']): Notice {
  return { kind: 'notice', level, text, facts }
}

const EXHAUSTED: Readonly<Record<Resource, string>> = {
  connections: 'too many relayed connections; new ones are refused',
  sessions: 'too many relayed UDP clients; datagrams of new ones are dropped',
}

/** The state that the two listeners of one Service port share. */
export interface ForwarderPort {
  /** PortFrontends.key */
  readonly key: string
  readonly balancer: Balancer
  readonly holder: Holder
  readonly reports: ReportLimit
}

/** Errors of this process, which another endpoint would not avoid. */
export const OWN_ERRORS: ReadonlySet<string> = new Set([
  'EMFILE',
  'ENFILE',
  'ENOBUFS',
  'ENOMEM',
  'EADDRNOTAVAIL',
])

const UNREACHABLE = 'endpoint does not accept connections; trying others'
const STARVED = 'cannot open a socket to an endpoint; the client is refused'
const LOOP = 'refused a connection that this process made to itself'

/** Reports once a minute that an endpoint could not be reached, and whether the endpoint or this process failed. */
export function reportUnreached(
  { report }: Pick<ForwarderContext, 'report'>,
  { key: servicePort, reports }: ForwarderPort,
  {
    endpoint,
    error: { code, message: error },
  }: { readonly endpoint: string; readonly error: NodeJS.ErrnoException },
): void {
  const isOurs = OWN_ERRORS.has(code ?? '')
  if (!reports.isDue(isOurs ? '' : endpoint)) return
  if (isOurs) report(notice('warn', STARVED, { servicePort, error }))
  else report(notice('info', UNREACHABLE, { servicePort, endpoint, error }))
}

/** Counts a connection of this process that came back to it, and reports it once a minute. */
export function reportLoop(
  { own, report }: ForwarderContext,
  { key: servicePort, reports }: ForwarderPort,
): void {
  own.countLoop()
  if (reports.isDue('loop')) report(notice('warn', LOOP, { servicePort }))
}

export function reportBroken({ report }: ForwarderContext, { key }: ForwarderPort, { message }: Error): void {
  report({ kind: 'failed', error: new Error(`relay of ${key}: ${message}`) })
}

/** A socket that clients are redirected to. */
export interface Listener {
  readonly list: ListName
  readonly port: number
  /** Opens or closes the listener. While closed, it refuses every connection: the rules are not in place yet. */
  setOpen(open: boolean): void
  /** Handles removed endpoints: ends the connections that cannot continue. */
  changed(): void
  /** Stops accepting. Existing connections continue where the protocol has connections. */
  close(): void
  isBusy(): boolean
  destroy(): void
  /** Lets the process exit in spite of the listener and its connections. */
  unref(): void
}

/** Reports once a minute what would recur with every connection. */
export class ReportLimit {
  readonly #clock: Clock
  /** The time of the last report of each message, oldest first. */
  readonly #reportedAtMs = new Map<string, number>()

  constructor(clock: Clock) {
    this.#clock = clock
  }

  /** Tests whether a message is due; if so, it counts as reported. */
  isDue(message: string): boolean {
    const nowMs = this.#clock.nowMs()
    for (const [each, reportedAtMs] of this.#reportedAtMs) {
      if (nowMs - reportedAtMs < 60_000) break
      this.#reportedAtMs.delete(each)
    }
    if (this.#reportedAtMs.has(message)) return false
    this.#reportedAtMs.set(message, nowMs)
    return true
  }
}

/** Closes a connection of ours, and calls back once it is closed. */
export type Abort = (closed: () => void) => void

/**
 * The addresses of this process's own sockets towards endpoints. A client with one of these addresses may be
 * this process, redirected back to itself; forwarding such a connection would never end. For UDP it is, because
 * no two sockets share an address. For TCP it may be another process of this node, to which the kernel gave
 * the same port for another destination. Closing our own connection then shows whether the client's
 * connection ends with it.
 */
class OwnSockets {
  readonly #sockets = new Map<string, Set<Abort>>()
  #loops = 0

  /** The number of connections that came back. */
  get loops(): number {
    return this.#loops
  }

  get size(): number {
    return this.#sockets.size
  }

  /** Adds a socket, until the returned function is called. */
  add(protocol: 'TCP' | 'UDP', place: Place, abort: Abort): () => void {
    const key = keyOf(protocol, place)
    const sockets = this.#sockets.get(key) ?? new Set()
    this.#sockets.set(key, sockets.add(abort))
    return () => {
      sockets.delete(abort)
      if (sockets.size === 0 && this.#sockets.get(key) === sockets) this.#sockets.delete(key)
    }
  }

  /** Gives the sockets that a client with this address may belong to. */
  at(protocol: 'TCP' | 'UDP', place: Place): readonly Abort[] {
    return [...(this.#sockets.get(keyOf(protocol, place)) ?? [])]
  }

  countLoop(): void {
    this.#loops++
  }
}

interface Place {
  readonly address: string
  readonly port: number
}

function keyOf(protocol: 'TCP' | 'UDP', { address, port }: Place): string {
  return `${protocol} ${address} ${port}`
}
