import { type Clock, Pacer, restMs } from '../base/clock.ts'
import { PersistentMap } from '../base/collections.ts'
import { formatIpPort } from '../base/ip.ts'
import type { Log } from '../base/log.ts'
import type { Octets } from '../base/octets.ts'
import { ATTEMPTS_MIN, AttemptReader, type Attempts, placeKey, silentIn } from '../flows/attempts.ts'
import { type ConntrackReader, createConntrackClient } from '../kernel/conntrack/client.ts'
import type { Flow } from '../kernel/conntrack/flow.ts'
import { readTimeouts } from '../kernel/conntrack/timeouts.ts'
import { settingNow } from '../kernel/sysctl/sysctls.ts'
import type { FrontendTable, PortFrontends } from '../model/frontend.ts'
import { podNames, podPlaces } from '../model/pod-names.ts'
import type { ServiceKey, SilentEndpoint } from '../model/service.ts'
import type { Snapshot, SnapshotEvent } from '../model/snapshot.ts'
import { type EventFact, endpointOut } from '../telemetry/event.ts'
import type { Metrics } from '../telemetry/metrics.ts'
import type { DaemonIo } from './io.ts'

/** A reading walks over the table: 10 ms of processor time with 262,144 buckets. Beyond 50 ms, readings are rarer. */
const PACE = { share: 0.05, minMs: 1_000 } as const
/** How long an endpoint is out. The time doubles each time that it is silent again, up to the maximum. */
const OUT_MS = 10_000
const OUT_MS_MAX = 80_000
/** An endpoint that was back for so long begins anew. */
const FORGOTTEN_MS = 60_000
/** Endpoints of this node that are out, or were lately; no more are taken out. */
const OUT_MAX = 1_000
const RETRY_MS = 10_000

interface FailOverOptions {
  readonly conntrack: Pick<ConntrackReader, 'dumpByReply' | 'delete' | 'close'>
  readonly clock: Clock
  readonly log: Log
  readonly nodeName: string
  readonly setting?: (path: string) => number | undefined
  readonly metrics: Pick<Metrics, 'kprobe_failed_over_endpoints' | 'kprobe_fail_overs_total'>
  /** Gives the silent endpoints to the next pass. */
  readonly take: (events: readonly SnapshotEvent[]) => void
  readonly tell: (fact: EventFact) => void
}

/** Makes the FailOver of a daemon; undefined without a socket to conntrack. Opens none before a Service requests it. */
export function failOverOf(
  { clock, log, openConntrack: openTransport }: Pick<DaemonIo, 'clock' | 'log' | 'openConntrack'>,
  rest: Pick<FailOverOptions, 'nodeName' | 'metrics' | 'take' | 'tell'>,
): FailOver | undefined {
  if (openTransport === undefined) return undefined
  return new FailOver({ clock, log, conntrack: createConntrackClient({ openTransport, clock }), ...rest })
}

type Socket = Pick<SilentEndpoint, 'ip' | 'port'>

interface View {
  readonly snapshot: Snapshot
  readonly table: FrontendTable
}

/** A silent endpoint of a port. */
interface Out {
  readonly port: Pick<PortFrontends, 'key' | 'service' | 'displayName'>
  readonly endpoint: SilentEndpoint
  /** How often in a row. */
  readonly times: number
  readonly untilMs: number
  /** It gets connections again. */
  readonly isBack: boolean
}

/**
 * Takes endpoints out of the balance of this node that leave connection attempts without an answer while others of their port
 * answer, for Services with kprobe.io/fail-over. They come back by themselves. Reads conntrack once a second while such
 * a Service is there, and never otherwise.
 */
export class FailOver {
  readonly #options: FailOverOptions
  readonly #reader: AttemptReader
  readonly #pacer: Pacer
  readonly #asking = new Set<ServiceKey>()
  /** By port and place: those that are out, and those that were lately. */
  readonly #outs = new Map<string, Out>()
  #view: View | undefined
  #isFailing = false

  constructor(options: FailOverOptions) {
    const { clock, conntrack } = options
    this.#options = options
    this.#reader = new AttemptReader({ conntrack, clock })
    this.#pacer = new Pacer({ clock, run: () => this.#passOnce() })
  }

  /** Takes what the kernel has after a sync; undefined in modes without fail-over. Cost follows the change. */
  offer(view: View | undefined): void {
    const before = this.#view?.snapshot.services ?? PersistentMap.empty()
    const now = view?.snapshot.services ?? PersistentMap.empty()
    this.#view = view
    for (const key of PersistentMap.changes(before, now)) {
      if (now.get(key)?.failsOver === true) this.#asking.add(key)
      else if (this.#asking.delete(key)) this.#forget(({ port }) => port.service === key)
    }
    if (this.#asking.size > 0) this.#pacer.wake(PACE.minMs)
    else this.#pacer.cancel()
  }

  async stop(): Promise<void> {
    await this.#pacer.stop()
    await this.#options.conntrack.close()
  }

  async #passOnce(): Promise<number | undefined> {
    const { clock, log } = this.#options
    const view = this.#view
    if (view === undefined || this.#asking.size === 0) return undefined
    const startCpuMs = clock.cpuMs()
    try {
      await this.#read(view)
      this.#isFailing = false
      // Not the time that passed: on a busy machine, fail-over would be late when it is needed.
      this.#pacer.rest(restMs(clock.cpuMs() - startCpuMs, PACE))
    } catch (err) {
      if (!this.#isFailing) log.warn({ err }, 'cannot read conntrack: no endpoint fails over; retrying')
      this.#isFailing = true
      this.#pacer.rest(RETRY_MS)
    }
    this.#return()
    return 0
  }

  async #read(view: View): Promise<void> {
    const { setting = settingNow } = this.#options
    const timeouts = readTimeouts(setting)
    const attempts = await this.#reader.unanswered(timeouts)
    await this.#deleteLost(view, attempts)
    const isSuspect = (place: Octets) => (attempts.get(place)?.length ?? 0) >= ATTEMPTS_MIN
    if (![...attempts.keys()].some(isSuspect)) return
    const ports = this.#ports(view).filter(({ places }) => [...places.keys()].some(isSuspect))
    if (ports.length === 0) return
    const watched = new Set(ports.flatMap(({ places }) => [...places.keys()]))
    const answers = await this.#reader.answers(watched, timeouts)
    for (const { port, places } of ports) {
      const isOut = (place: Octets) => this.#isOut(port.key, place)
      for (const silent of silentIn({ places: [...places.keys()], isOut }, attempts, answers)) {
        const endpoint = places.get(silent.place)
        if (endpoint !== undefined) this.#takeOut(port, endpoint, silent)
      }
    }
  }

  /** Gives the ports of the Services that request fail-over, with the endpoints that they would have without it. */
  #ports({ table }: View) {
    const outs = [...this.#outs.values()].filter(({ isBack }) => !isBack)
    return [...this.#asking].flatMap(key =>
      (table.services.get(key)?.ports ?? []).map(port => {
        const { protocol } = port
        const served = [...port.cluster, ...port.local].map(({ ip, port }) => ({ protocol, ip, port }))
        const silent = outs.filter(out => out.port.key === port.key).map(({ endpoint }) => endpoint)
        const places = new Map([...served, ...silent].map(its => [placeOf(its), its]))
        return { port, places }
      }),
    )
  }

  #isOut(port: string, place: Octets): boolean {
    return this.#outs.get(`${port} ${place}`)?.isBack === false
  }

  #takeOut(
    port: PortFrontends,
    endpoint: SilentEndpoint,
    { place, attempts }: { readonly place: Octets; readonly attempts: number },
  ): void {
    const { clock, log, nodeName, metrics, tell } = this.#options
    const id = `${port.key} ${place}`
    const before = this.#outs.get(id)
    if (before === undefined && this.#outs.size >= OUT_MAX) return
    const times = (before?.times ?? 0) + 1
    const forMs = Math.min(OUT_MS * 2 ** (times - 1), OUT_MS_MAX)
    // The last one comes last: the model takes out the first ones, as many as it may.
    this.#outs.delete(id)
    this.#outs.set(id, { port, endpoint, times, untilMs: clock.nowMs() + forMs, isBack: false })
    metrics.kprobe_fail_overs_total.inc()
    const facts = this.#facts(port, endpoint)
    log.warn(
      { ...facts, attempts, seconds: forMs / 1_000 },
      'the endpoint leaves connections without a reply while others answer; it gets no new ones from this node for a time',
    )
    if (times === 1) tell(endpointOut(nodeName, facts))
    this.#publish(port.service)
  }

  #facts({ service, displayName }: Out['port'], { ip, port }: SilentEndpoint) {
    const endpoint = formatIpPort(ip, port)
    const pod = podNames(podPlaces(this.#view?.snapshot.slices.get(service) ?? []))(endpoint)
    return { service: displayName, endpoint, ...(pod === undefined ? {} : { pod }) }
  }

  /** Lets endpoints get connections again whose time is over, and forgets those that were back for long. */
  #return(): void {
    const { clock, log } = this.#options
    const nowMs = clock.nowMs()
    for (const [id, out] of this.#outs) {
      if (nowMs >= out.untilMs + FORGOTTEN_MS) this.#outs.delete(id)
      if (out.isBack || nowMs < out.untilMs) continue
      this.#outs.set(id, { ...out, isBack: true })
      log.info(this.#facts(out.port, out.endpoint), 'the endpoint gets new connections again')
      this.#publish(out.port.service)
    }
  }

  #forget(isChosen: (out: Out) => boolean): void {
    const services = new Set<ServiceKey>()
    for (const [id, out] of this.#outs) {
      if (!isChosen(out)) continue
      this.#outs.delete(id)
      services.add(out.port.service)
    }
    for (const service of services) this.#publish(service)
  }

  #publish(service: ServiceKey): void {
    const { metrics, take } = this.#options
    const out = [...this.#outs.values()].filter(({ isBack }) => !isBack)
    metrics.kprobe_failed_over_endpoints.set(out.length)
    const its = out.filter(({ port }) => port.service === service)
    const endpoints = [...new Map(its.map(({ endpoint }) => [placeOf(endpoint), endpoint])).values()]
    take([{ kind: 'Silent', key: service, value: endpoints.length === 0 ? undefined : { endpoints } }])
  }

  /** Deletes the attempts whose endpoint the rules of the port no longer lead to: the client's next packet goes to another one. */
  async #deleteLost({ table }: View, attempts: Attempts): Promise<void> {
    const lost: Flow[] = []
    for (const { isBack, endpoint, port: its } of this.#outs.values()) {
      const port = table.services.get(its.service)?.ports.find(({ key }) => key === its.key)
      const served = [...(port?.cluster ?? []), ...(port?.local ?? [])]
      if (port === undefined || isBack || served.some(each => isSameSocket(each, endpoint))) continue
      for (const { flow } of attempts.get(placeOf(endpoint)) ?? []) if (leadsTo(port, flow)) lost.push(flow)
    }
    if (lost.length > 0) await this.#options.conntrack.delete(lost)
  }
}

function leadsTo({ frontends }: PortFrontends, { destination, destinationPort }: Flow): boolean {
  return frontends.some(({ ip, port }) => port === destinationPort && (ip ?? destination) === destination)
}

function isSameSocket(a: Socket, b: Socket): boolean {
  return a.ip === b.ip && a.port === b.port
}

function placeOf({ protocol, ip, port }: SilentEndpoint): Octets {
  return placeKey(protocol, ip, port)
}
