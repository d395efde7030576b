import { type Clock, Pacer, restMs } from '../base/clock.ts'
import { PersistentMap } from '../base/collections.ts'
import { formatIpPort, type Ip } from '../base/ip.ts'
import type { Log } from '../base/log.ts'
import type { Octets } from '../base/octets.ts'
import { type Answers, AttemptReader, type Attempts, judgeList, placeKey } from '../flows/attempts.ts'
import { Stopped } from '../flows/pass.ts'
import type { View } from '../flows/ports.ts'
import { type ConntrackReader, createConntrackClient } from '../kernel/conntrack/client.ts'
import type { Flow } from '../kernel/conntrack/flow.ts'
import { readTimeouts } from '../kernel/conntrack/timeouts.ts'
import { settingNow } from '../kernel/sysctl/sysctls.ts'
import type { Backend, PortFrontends, ServiceFrontends } from '../model/frontend.ts'
import { podNames, podPlaces } from '../model/pod-names.ts'
import type { ServiceKey, SilentEndpoint, SliceList } from '../model/service.ts'
import { EMPTY_SNAPSHOT, type SnapshotEvent } from '../model/snapshot.ts'
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

const CANNOT_READ = 'cannot read conntrack: no endpoint fails over; retrying'
const CANNOT_DELETE = 'cannot delete connection attempts to silent endpoints from conntrack; retrying'
const FULL = `no more endpoints fail over: ${OUT_MAX} are out or were lately`

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

/** A silent endpoint of a Service. */
interface Out {
  readonly service: ServiceKey
  /** The name of its port. */
  readonly displayName: string
  readonly endpoint: SilentEndpoint
  /** The keys of the lists that it is out of. */
  readonly lists: ReadonlySet<string>
  /** How often in a row. */
  readonly times: number
  readonly untilMs: number
  /** It gets connections again. */
  readonly isBack: boolean
}

/** A list of endpoints of a port, with those that are out of it. */
interface List {
  readonly key: string
  readonly port: PortFrontends
  readonly places: ReadonlyMap<Octets, SilentEndpoint>
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
  /** By Service and place: those that are out, and those that were lately. */
  readonly #outs = new Map<string, Out>()
  /** The warnings whose cause lasts. */
  readonly #warned = new Set<string>()
  #view: View | undefined

  constructor(options: FailOverOptions) {
    const { clock, conntrack } = options
    this.#options = options
    this.#pacer = new Pacer({ clock, run: () => this.#passOnce() })
    this.#reader = new AttemptReader({ conntrack, clock, isStopped: () => this.#pacer.isStopped })
  }

  /** Takes what the kernel has after a sync; undefined in modes without fail-over. Cost follows the change. */
  offer(view: View | undefined): void {
    const before = this.#view?.snapshot ?? EMPTY_SNAPSHOT
    const now = view?.snapshot ?? EMPTY_SNAPSHOT
    this.#view = view
    for (const key of PersistentMap.changes(before.services, now.services)) {
      if (now.services.get(key)?.failsOver === true) this.#asking.add(key)
      else if (this.#asking.delete(key)) this.#forget(key, [])
    }
    for (const key of PersistentMap.changes(before.slices, now.slices))
      this.#forget(key, now.slices.get(key) ?? [])
    if (this.#asking.size > 0) this.#pacer.wake(PACE.minMs)
  }

  async stop(): Promise<void> {
    await this.#pacer.stop()
    await this.#options.conntrack.close()
  }

  async #passOnce(): Promise<number | undefined> {
    const { clock } = this.#options
    const view = this.#view
    if (view === undefined || this.#asking.size === 0) {
      this.#reader.forget()
      return undefined
    }
    const startCpuMs = clock.cpuMs()
    try {
      await this.#read(view)
      this.#warned.delete(CANNOT_READ)
      // Not the time that passed: on a busy machine, fail-over would be late when it is needed.
      this.#pacer.rest(restMs(clock.cpuMs() - startCpuMs, PACE))
    } catch (err) {
      if (err instanceof Stopped) return undefined
      this.#warnOnce(CANNOT_READ, err)
      this.#pacer.rest(RETRY_MS)
    }
    this.#return()
    return 0
  }

  async #read(view: View): Promise<void> {
    const { setting = settingNow } = this.#options
    const timeouts = readTimeouts(setting)
    const { waiting, suspects } = await this.#reader.unanswered(timeouts)
    const suspected = this.#suspected(view, suspects)
    if (suspected.length === 0) this.#reader.forgetAnswers()
    else {
      const answers = await this.#reader.answers(timeouts)
      for (const key of suspected) this.#judge(key, view, { waiting, answers })
    }
    await this.#deleteLost(waiting)
  }

  /** Gives the Services that request fail-over and have an endpoint at one of these addresses. */
  #suspected({ table }: View, suspects: ReadonlySet<Ip>): readonly ServiceKey[] {
    if (suspects.size === 0) return []
    const isSuspect = ({ ip }: Backend) => suspects.has(ip)
    return [...this.#asking].filter(key =>
      table.services.get(key)?.ports.some(port => port.cluster.some(isSuspect) || port.local.some(isSuspect)),
    )
  }

  /** Judges a Service that is as it was when the reading began. What is taken out is silent in all lists that have it. */
  #judge(service: ServiceKey, view: View, read: { readonly waiting: Attempts; readonly answers: Answers }) {
    const its = view.table.services.get(service)
    if (its === undefined || this.#view?.table.services.get(service) !== its) return
    if (!this.#asking.has(service)) return
    const isOut = (place: Octets) => this.#outs.get(outKey(service, place))?.isBack === false
    const judged = this.#listsOf(its).map(list => {
      const judgment = judgeList({ places: [...list.places.keys()], isOut }, read.waiting, read.answers)
      return { ...list, ...judgment }
    })
    for (const { places, isDead } of judged)
      if (isDead) for (const place of places.keys()) this.#letBack(outKey(service, place))
    const places = new Set(judged.flatMap(({ silent }) => [...silent.keys()]))
    for (const place of places) {
      const lists = judged.filter(({ places }) => places.has(place))
      if (lists.every(({ silent }) => silent.has(place)))
        this.#takeOut(place, lists, lists[0]?.silent.get(place) ?? 0)
    }
  }

  #listsOf({ service, ports }: ServiceFrontends): readonly List[] {
    const outs = this.#outsOf(service)
    return ports.flatMap(port =>
      [port.cluster, port.local].map((list, at) => {
        const { protocol } = port
        const key = `${port.key} ${at}`
        const served = list.map(({ ip, port }) => ({ protocol, ip, port }))
        const silent = outs.filter(({ lists }) => lists.has(key)).map(({ endpoint }) => endpoint)
        return { key, port, places: new Map([...served, ...silent].map(each => [placeKey(each), each])) }
      }),
    )
  }

  #takeOut(place: Octets, lists: readonly List[], attempts: number): void {
    const { clock, log, nodeName, metrics, tell } = this.#options
    const [first] = lists
    const endpoint = first?.places.get(place)
    if (first === undefined || endpoint === undefined) return
    const { service, displayName } = first.port
    const id = outKey(service, place)
    const before = this.#outs.get(id)
    if (before === undefined && this.#outs.size >= OUT_MAX) {
      this.#warnOnce(FULL)
      return
    }
    const times = (before?.times ?? 0) + 1
    const forMs = Math.min(OUT_MS * 2 ** (times - 1), OUT_MS_MAX)
    const keys = new Set(lists.map(({ key }) => key))
    const untilMs = clock.nowMs() + forMs
    const out: Out = { service, displayName, endpoint, lists: keys, times, untilMs, isBack: false }
    // The last one comes last: the model takes out the first ones, as many as it may.
    this.#outs.delete(id)
    this.#outs.set(id, out)
    metrics.kprobe_fail_overs_total.inc()
    const facts = this.#facts(out)
    log.warn(
      { ...facts, attempts, seconds: forMs / 1_000 },
      'the endpoint leaves connections without a reply while others answer; it gets no new ones from this node for a time',
    )
    if (times === 1) tell(endpointOut(nodeName, facts))
    this.#publish(service)
  }

  #facts({ service, displayName, endpoint: { ip, port } }: Out) {
    const endpoint = formatIpPort(ip, port)
    const pod = podNames(podPlaces(this.#view?.snapshot.slices.get(service) ?? []))(endpoint)
    return { service: displayName, endpoint, ...(pod === undefined ? {} : { pod }) }
  }

  /** Lets endpoints get connections again whose time is over, and forgets those that were back for long. */
  #return(): void {
    const nowMs = this.#options.clock.nowMs()
    for (const [id, { isBack, untilMs }] of this.#outs) {
      if (!isBack && nowMs >= untilMs) this.#letBack(id)
      else if (isBack && nowMs >= untilMs + FORGOTTEN_MS) this.#outs.delete(id)
    }
    if (this.#outs.size < OUT_MAX) this.#warned.delete(FULL)
  }

  #letBack(id: string): void {
    const out = this.#outs.get(id)
    if (out === undefined || out.isBack) return
    this.#outs.set(id, { ...out, untilMs: this.#options.clock.nowMs(), isBack: true })
    this.#options.log.info(this.#facts(out), 'the endpoint gets new connections again')
    this.#publish(out.service)
  }

  /** Forgets those of a Service that are in none of these slices: another pod at the address begins anew. */
  #forget(service: ServiceKey, slices: SliceList): void {
    const isIn = ({ protocol, ip, port }: SilentEndpoint) =>
      slices.some(
        ({ ports, endpoints }) =>
          ports.some(its => its.port === port && its.protocol === protocol) &&
          endpoints.some(its => its.ip === ip),
      )
    const gone = [...this.#outs].filter(([, out]) => out.service === service && !isIn(out.endpoint))
    for (const [id] of gone) this.#outs.delete(id)
    if (gone.length > 0) this.#publish(service)
  }

  #outsOf(service: ServiceKey): readonly Out[] {
    return [...this.#outs.values()].filter(out => out.service === service && !out.isBack)
  }

  #publish(service: ServiceKey): void {
    const { metrics, take } = this.#options
    const out = [...this.#outs.values()].filter(({ isBack }) => !isBack)
    metrics.kprobe_failed_over_endpoints.set(out.length)
    const endpoints = this.#outsOf(service).map(({ endpoint }) => endpoint)
    take([{ kind: 'Silent', key: service, value: endpoints.length === 0 ? undefined : { endpoints } }])
  }

  /** Deletes the attempts whose endpoint the rules no longer lead to: the client's next packet goes to another one. */
  async #deleteLost(attempts: Attempts): Promise<void> {
    const lost: Flow[] = []
    for (const { isBack, endpoint, service } of this.#outs.values()) {
      const { protocol, ip, port } = endpoint
      const all = this.#view?.table.services.get(service)?.ports ?? []
      const ports = all.filter(its => its.protocol === protocol)
      const isServed = ports.some(({ cluster, local }) =>
        [...cluster, ...local].some(its => its.ip === ip && its.port === port),
      )
      if (isBack || isServed) continue
      for (const { flow } of attempts.get(placeKey(endpoint)) ?? [])
        if (ports.some(each => leadsTo(each, flow))) lost.push(flow)
    }
    try {
      if (lost.length > 0) await this.#options.conntrack.delete(lost)
      this.#warned.delete(CANNOT_DELETE)
    } catch (err) {
      this.#warnOnce(CANNOT_DELETE, err)
    }
  }

  #warnOnce(text: string, err?: unknown): void {
    if (!this.#warned.has(text)) this.#options.log.warn(err === undefined ? {} : { err }, text)
    this.#warned.add(text)
  }
}

function leadsTo({ frontends }: PortFrontends, { destination, destinationPort }: Flow): boolean {
  return frontends.some(({ ip, port }) => port === destinationPort && (ip ?? destination) === destination)
}

function outKey(service: ServiceKey, place: Octets): string {
  return `${service} ${place}`
}
