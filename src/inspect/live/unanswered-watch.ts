import { Pacer, restMs } from '../../base/clock.ts'
import type { DaemonUnanswered, UnansweredOptions } from '../../daemon/optional-parts.ts'
import type { ConntrackReader } from '../../kernel/conntrack/client.ts'
import type { FrontendTable } from '../../model/frontend.ts'
import { endpointTexts } from '../../modes/common/show.ts'
import { endpointSilent } from '../../telemetry/event.ts'
import { namesOfPorts, type UnansweredNames, UnansweredReader } from './unanswered.ts'
import { isSilent, type Unanswered, type UnansweredRow, WORST_MAX } from './unanswered-rows.ts'

/**
 * A look costs a walk over the table: 10 ms of processor time with 262,144 buckets, which is 0.02 % of a processor, and 50 ms
 * with 200,000 entries. Beyond that, looks are rarer.
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

/** Looks at unanswered connections while the daemon runs, and reports an endpoint that answers few of them in two looks. */
export class UnansweredWatch implements DaemonUnanswered {
  readonly #options: WatchOptions
  readonly #reader: UnansweredReader
  readonly #looks: Pacer
  #last: Unanswered | undefined
  /** Endpoints in trouble at the last look, and whether they were reported. */
  #silent = new Map<string, boolean>()

  constructor(options: WatchOptions) {
    const { clock } = options
    this.#options = options
    this.#reader = new UnansweredReader(options)
    this.#looks = new Pacer({ clock, run: () => this.#look() })
    this.#looks.wake(QUIET.minMs)
  }

  get last(): Unanswered | undefined {
    return this.#last
  }

  get silent(): number {
    return this.#silent.size
  }

  async stop(): Promise<void> {
    await this.#looks.stop()
    await this.#options.conntrack.close()
  }

  async #look(): Promise<number> {
    const { clock, table } = this.#options
    const now = table()
    if (now === undefined) return QUIET.minMs
    const startMs = clock.nowMs()
    const { rows, ...rest } = await this.#reader.read(namesOf(now))
    const tookMs = clock.nowMs() - startMs
    // Endpoints that are gone no longer get connections.
    const present = rows.filter(row => isEndpoint(row, now))
    this.#last = { ...rest, rows: present.slice(0, WORST_MAX) }
    this.#report(present.filter(row => isSilent(row, REPORTED_MIN)).slice(0, WORST_MAX))
    return restMs(tookMs, present.some(({ isOneWay }) => !isOneWay) ? TROUBLED : QUIET)
  }

  #report(silent: readonly UnansweredRow[]): void {
    const { log, nodeName, tell } = this.#options
    const before = this.#silent
    this.#silent = new Map()
    for (const row of silent) {
      const { service, endpoint, unanswered, connections } = row
      const key = `${service} ${endpoint}`
      const isKnown = before.get(key)
      this.#silent.set(key, isKnown !== undefined)
      if (isKnown !== false) continue
      log.warn({ service, endpoint, unanswered, connections }, 'the endpoint does not answer')
      tell(endpointSilent(nodeName, row))
    }
    for (const [key, isReported] of before)
      if (isReported && !this.#silent.has(key)) {
        const [service, endpoint] = key.split(' ')
        log.info({ service, endpoint }, 'the endpoint answers again, or gets no connections')
      }
  }
}

/** Makes the names when the first is asked for: a look that finds nothing needs none. */
function namesOf({ services }: FrontendTable): UnansweredNames {
  let names: UnansweredNames | undefined
  return {
    serviceOf(...destination) {
      names ??= namesOfPorts([...services.values()].flatMap(({ ports }) => ports))
      return names.serviceOf(...destination)
    },
  }
}

function isEndpoint({ service, protocol, endpoint }: UnansweredRow, { services }: FrontendTable): boolean {
  const ports = services.get(service.replace(/:.*$/, ''))?.ports ?? []
  return ports.some(
    port =>
      port.displayName === service &&
      port.protocol === protocol &&
      endpointTexts([...port.cluster, ...port.local]).includes(endpoint),
  )
}
