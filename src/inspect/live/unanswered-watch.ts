import { Pacer, restMs } from '../../base/clock.ts'
import type { DaemonUnanswered, UnansweredOptions } from '../../daemon/optional-parts.ts'
import type { ConntrackReader } from '../../kernel/conntrack/client.ts'
import type { FrontendTable } from '../../model/frontend.ts'
import { type PodNames, podNames, podPlaces } from '../../model/pod-names.ts'
import type { ServiceKey } from '../../model/service.ts'
import type { Snapshot } from '../../model/snapshot.ts'
import { namesOfPorts, type ServiceNames, serviceOfFlow } from '../../modes/common/service-names.ts'
import { endpointTexts } from '../../modes/common/show.ts'
import { endpointSilent } from '../../telemetry/event.ts'
import { type UnansweredNames, UnansweredReader } from './unanswered.ts'
import { isSilent, type Unanswered, type UnansweredRow, WORST_MAX } from './unanswered-rows.ts'

/**
 * A reading costs a walk over the table: 10 ms of processor time with 262,144 buckets, which is 0.02 % of a processor, and 50 ms
 * with 200,000 entries. Beyond that, readings are rarer.
 */
const QUIET = { share: 0.001, minMs: 60_000 } as const
/** While something meets no answer, the answered entries are read, too. */
const TROUBLED = { share: 0.01, minMs: 15_000 } as const
/** Connections without a reply from which an endpoint is reported. */
const REPORTED_MIN = 5

interface WatchOptions extends Omit<UnansweredOptions, 'openTransport'> {
  readonly conntrack: Pick<ConntrackReader, 'dump' | 'dumpByReply' | 'close'>
  readonly setting?: (path: string) => number | undefined
}

/** Reads unanswered connections while the daemon runs, and reports an endpoint that answers few of them in two readings. */
export class UnansweredWatch implements DaemonUnanswered {
  readonly #options: WatchOptions
  readonly #reader: UnansweredReader
  readonly #pacer: Pacer
  #last: Unanswered | undefined
  /** Endpoints in trouble at the last reading, and whether they were reported. */
  #silent = new Map<string, boolean>()

  constructor(options: WatchOptions) {
    const { clock } = options
    this.#options = options
    this.#reader = new UnansweredReader(options)
    this.#pacer = new Pacer({ clock, run: () => this.#pass() })
    this.#pacer.wake(QUIET.minMs)
  }

  get last(): Unanswered | undefined {
    return this.#last
  }

  get silent(): number {
    return this.#silent.size
  }

  async stop(): Promise<void> {
    await this.#pacer.stop()
    await this.#options.conntrack.close()
  }

  async #pass(): Promise<number> {
    const { clock, held } = this.#options
    const { table, snapshot } = held() ?? {}
    if (table === undefined || snapshot === undefined) return QUIET.minMs
    const startMs = clock.nowMs()
    const { rows, ...rest } = await this.#reader.read(namesOf(table))
    const tookMs = clock.nowMs() - startMs
    // Endpoints that are gone no longer get connections.
    const present = rows.filter(endpointsOf(table))
    const named = namerOf(snapshot)
    this.#last = { ...rest, rows: present.slice(0, WORST_MAX).map(named) }
    // A table that was not read says neither that an endpoint is silent, nor that it answers again.
    if (rest.seenS > 0) this.#report(present.filter(row => isSilent(row, REPORTED_MIN)).map(named))
    return restMs(tookMs, present.some(({ isOneWay }) => !isOneWay) ? TROUBLED : QUIET)
  }

  /** Reports as many endpoints at a time as the metric has, so that a node without a way out does not flood the log. */
  #report(silent: readonly UnansweredRow[]): void {
    const { log, nodeName, tell } = this.#options
    const before = this.#silent
    this.#silent = new Map()
    let room = WORST_MAX - [...before.values()].filter(isReported => isReported).length
    for (const row of silent) {
      const { service, endpoint, pod, unanswered, connections } = row
      const key = `${service} ${endpoint}`
      const wasReported = before.get(key)
      const isNews = wasReported === false && room-- > 0
      this.#silent.set(key, wasReported === true || isNews)
      if (!isNews) continue
      log.warn({ service, endpoint, pod, unanswered, connections }, 'the endpoint does not answer')
      tell(endpointSilent(nodeName, row))
    }
    for (const [key, isReported] of before)
      if (isReported && !this.#silent.has(key)) {
        const [service, endpoint] = key.split(' ')
        log.info({ service, endpoint }, 'the endpoint answers again, or gets no connections')
      }
  }
}

/** Makes the names when the first is asked for: a reading that finds nothing needs none. */
function namesOf({ services }: FrontendTable): UnansweredNames {
  let names: ServiceNames | undefined
  return {
    serviceOf(...destination) {
      names ??= namesOfPorts(services.values().flatMap(({ ports }) => ports))
      return serviceOfFlow(names, ...destination)
    },
  }
}

/** Formats the endpoints of a service port once, however many rows it has. */
function endpointsOf({ services }: FrontendTable): (row: UnansweredRow) => boolean {
  const known = new Map<string, ReadonlySet<string>>()
  const textsOf = ({ service, protocol }: UnansweredRow) => {
    const ports = services.get(keyOf(service))?.ports ?? []
    const its = ports.filter(port => port.displayName === service && port.protocol === protocol)
    return new Set(its.flatMap(({ cluster, local }) => endpointTexts([...cluster, ...local])))
  }
  return row => {
    const key = `${row.protocol} ${row.service}`
    const texts = known.get(key) ?? textsOf(row)
    known.set(key, texts)
    return texts.has(row.endpoint)
  }
}

/** Gives a function that adds the Pod to a row. Pods of other Services are not looked up. */
function namerOf({ slices }: Pick<Snapshot, 'slices'>): (row: UnansweredRow) => UnansweredRow {
  const known = new Map<ServiceKey, PodNames>()
  return row => {
    const key = keyOf(row.service)
    const pods = known.get(key) ?? podNames(podPlaces(slices.get(key) ?? []))
    known.set(key, pods)
    const pod = pods(row.endpoint)
    return pod === undefined ? row : { ...row, pod }
  }
}

/** Gives the Service of `namespace/name:port`. */
function keyOf(port: string): ServiceKey {
  return port.replace(/:.*$/, '')
}
