import { type Clock, systemClock } from '../../base/clock.ts'
import { failureText } from '../../base/errors.ts'
import { FAMILIES, formatIpPort, type Ip } from '../../base/ip.ts'
import type { Octets } from '../../base/octets.ts'
import { lent } from '../../cli/io.ts'
import { HERE } from '../../daemon/open.ts'
import { type ConntrackReader, createConntrackClient } from '../../kernel/conntrack/client.ts'
import { IPS_SEEN_REPLY, isTranslated, PROGRESS } from '../../kernel/conntrack/flow.ts'
import { decodeRecord, type FlowRecord, isPlain, plainKey } from '../../kernel/conntrack/record.ts'
import { answeredTimeout, readTimeouts, type Timeouts } from '../../kernel/conntrack/timeouts.ts'
import { settingNow } from '../../kernel/sysctl/sysctls.ts'
import type { FlowDestination } from '../../modes/common/service-names.ts'
import type { ByteView } from '../../netlink/attribute.ts'
import { type Message, nfSpan } from '../../netlink/message.ts'
import { readAttributes } from '../../netlink/schema.ts'
import { type Unanswered, type UnansweredRow, worstFirst } from './unanswered-rows.ts'

export interface UnansweredNames {
  /** Gives `namespace/name:port`; undefined for a destination of no Service. */
  serviceOf(destination: FlowDestination, isTranslated: boolean): string | undefined
  /** Gives `namespace/name` of the Pod at `ADDRESS:PORT`; undefined where none is known. */
  podAt?(endpoint: string): string | undefined
}

interface UnansweredOptions {
  readonly conntrack: Pick<ConntrackReader, 'dump' | 'dumpByReply'>
  readonly clock: Pick<Clock, 'nowMs'>
  readonly setting?: (path: string) => number | undefined
}

const WINDOW_S = 60
/** A client repeats its SYN after 1 s (RFC 6298); conntrack counts whole seconds. */
const ANSWER_S = 2
/** Pairs of a destination and an endpoint with unanswered connections; one-way destinations of UDP as well. */
const PAIRS_MAX = 10_000
/** Pairs of answered connections that one read remembers, so as not to decode each entry. */
const KNOWN_MAX = 50_000
/** Time between two reads of all UDP entries, which show the ports that answer. */
const LEARN_MS = 600_000

interface Pair {
  readonly record: FlowRecord
  unanswered: number
  answered: number
  isOneClient: boolean
}

/** Reads once, for commands that end. */
export async function readUnanswered(names: UnansweredNames): Promise<Unanswered> {
  const conntrack = createConntrackClient({ openTransport: HERE.sockets.netfilter, clock: systemClock })
  return await lent(conntrack, () => new UnansweredReader({ conntrack, clock: systemClock }).read(names))
}

/**
 * Reads from conntrack which connections to Services met no answer. Keeps the UDP ports that answered, so that a port that
 * never does is known from one whose endpoints have died. Costs nothing between two reads.
 */
export class UnansweredReader {
  readonly #options: UnansweredOptions
  /** Destinations of UDP that have answered a client. */
  readonly #answering = new Map<Octets, FlowDestination>()
  #learnDueMs = Number.NEGATIVE_INFINITY

  constructor(options: UnansweredOptions) {
    this.#options = options
  }

  /** Reads the table: the entries without an answer, and the others only where there are such. Does not reject. */
  async read(names: UnansweredNames): Promise<Unanswered> {
    const timeouts = readTimeouts(this.#options.setting ?? settingNow)
    try {
      const { conntrack } = this.#options
      const reading = new Reading(timeouts.seconds)
      await this.#learn()
      let isWhole = await conntrack.dumpByReply({ isAnswered: false }, (...entry) =>
        reading.takeUnanswered(...entry),
      )
      if (this.#mayBeTrouble(reading, names)) isWhole = (await this.#readAnswered(reading)) && isWhole
      const limits = [
        ...(timeouts.isKnown ? [] : [ASSUMED]),
        ...(isWhole ? [] : ['the table changed while it was read: some connections may be missing']),
        ...(reading.isCut ? [`only ${PAIRS_MAX.toLocaleString('en-US')} pairs are counted`] : []),
      ].join('; ')
      const rows = rowsOf(reading.pairs.values(), names, this.#answeringServices(reading, names))
      const seenS = Math.min(WINDOW_S, timeouts.seconds('tcp_timeout_syn_sent'))
      return { rows, seenS, ...(limits === '' ? {} : { limits }) }
    } catch (error) {
      return { rows: [], seenS: 0, limits: `conntrack cannot be read: ${failureText(error)}` }
    }
  }

  /** Tests whether a connection to a Service met no answer, where one-way ports do not count. */
  #mayBeTrouble(reading: Reading, names: UnansweredNames): boolean {
    const answering = this.#answeringServices(reading, names)
    return [...reading.pairs.values()].some(({ record }) => {
      const service = names.serviceOf(record, true)
      return service !== undefined && (record.protocol === 'TCP' || answering.has(service))
    })
  }

  #readAnswered(reading: Reading): Promise<boolean> {
    return this.#options.conntrack.dumpByReply({ isAnswered: true }, (...entry) => {
      const udp = reading.takeAnswered(...entry)
      if (udp !== undefined) this.#note(udp)
    })
  }

  /** Asks for no name where every connection is answered: to make names, the daemon walks over all Services. */
  #answeringServices({ pairs }: Reading, names: UnansweredNames): ReadonlySet<string | undefined> {
    if (pairs.size === 0) return new Set()
    return new Set([...this.#answering.values()].map(each => names.serviceOf(each, true)))
  }

  async #learn(): Promise<void> {
    const { conntrack, clock } = this.#options
    if (clock.nowMs() < this.#learnDueMs) return
    for (const family of FAMILIES)
      await conntrack.dump(
        { family, protocol: 'UDP' },
        {
          isWanted: () => true,
          visit: flow => {
            if (flow.isAnswered && isTranslated(flow)) this.#note(flow)
          },
        },
      )
    this.#learnDueMs = clock.nowMs() + LEARN_MS
  }

  #note({ protocol, destination, destinationPort }: FlowDestination): void {
    const key = `${destination}${String.fromCharCode(destinationPort)}`
    if (this.#answering.size >= PAIRS_MAX && !this.#answering.has(key)) this.#answering.clear()
    this.#answering.set(key, { protocol, destination, destinationPort })
  }
}

const ASSUMED = "the timeouts of conntrack cannot be read; the kernel's defaults are assumed"

/** What one read of the table finds. */
class Reading {
  readonly pairs = new Map<Octets, Pair>()
  isCut = false
  readonly #seconds: Timeouts['seconds']
  readonly #known = new Map<string, Known>()

  constructor(seconds: Timeouts['seconds']) {
    this.#seconds = seconds
  }

  takeUnanswered(view: ByteView, message: Message): void {
    const { status = 0, timeoutS } = readAttributes(view, PROGRESS, nfSpan(message))
    const record = (status & IPS_SEEN_REPLY) === 0 ? decodeRecord(view, message) : undefined
    if (record === undefined || timeoutS === undefined || !isTranslated(record)) return
    // The kernel forgets an INIT of SCTP after 3 s: few would be seen.
    if (record.protocol === 'SCTP') return
    const timeout = record.protocol === 'TCP' ? 'tcp_timeout_syn_sent' : 'udp_timeout'
    const silentS = this.#seconds(timeout) - timeoutS
    if (silentS < ANSWER_S || silentS > WINDOW_S) return
    const key = keyOf(record)
    const pair = this.pairs.get(key) ?? { record, unanswered: 0, answered: 0, isOneClient: true }
    if (this.pairs.size < PAIRS_MAX) this.pairs.set(key, pair)
    else this.isCut ||= !this.pairs.has(key)
    pair.unanswered++
    if (record.client !== pair.record.client) pair.isOneClient = false
  }

  /** Gives the connection where it is of UDP to a translated destination. */
  takeAnswered(view: ByteView, message: Message): FlowRecord | undefined {
    const plain = isPlain(view, message) ? plainKey(view, message) : undefined
    const known = (plain !== undefined && this.#known.get(plain)) || this.#knownOf(view, message)
    if (plain !== undefined) {
      if (this.#known.size >= KNOWN_MAX) this.#known.clear()
      this.#known.set(plain, known)
    }
    const { pair, udp } = known
    if (pair === undefined && udp === undefined) return undefined
    const progress = readAttributes(view, PROGRESS, nfSpan(message))
    if (((progress.status ?? 0) & IPS_SEEN_REPLY) === 0) return undefined
    const full = this.#seconds(answeredTimeout(progress))
    // The kernel gives no timeout for a connection in a flowtable, which has packets.
    if (pair !== undefined && full - (progress.timeoutS ?? full) <= WINDOW_S) pair.answered++
    return udp
  }

  #knownOf(view: ByteView, message: Message): Known {
    const record = decodeRecord(view, message)
    if (record === undefined || !isTranslated(record)) return {}
    return { pair: this.pairs.get(keyOf(record)), udp: record.protocol === 'UDP' ? record : undefined }
  }
}

interface Known {
  readonly pair?: Pair | undefined
  readonly udp?: FlowRecord | undefined
}

function keyOf({ protocol, destination, destinationPort, answerer, answererPort }: FlowRecord): Octets {
  return `${protocol}${destination}${String.fromCharCode(destinationPort)}${answerer}${String.fromCharCode(answererPort)}`
}

interface Counted extends Omit<UnansweredRow, 'isOneWay' | 'protocol'> {
  readonly protocol: FlowRecord['protocol']
  readonly client: Ip
}

function rowsOf(
  pairs: Iterable<Pair>,
  names: UnansweredNames,
  answering: ReadonlySet<string | undefined>,
): readonly UnansweredRow[] {
  const rows = new Map<string, Counted>()
  for (const { record, unanswered, answered, isOneClient } of pairs) {
    const service = names.serviceOf(record, true)
    if (service === undefined) continue
    const { protocol, client, answerer } = record
    const endpoint = formatIpPort(answerer, record.answererPort)
    const key = `${protocol} ${service} ${endpoint}`
    const pod = names.podAt?.(endpoint)
    const before = rows.get(key)
    rows.set(key, {
      service,
      protocol,
      endpoint,
      ...(pod === undefined ? {} : { pod }),
      connections: (before?.connections ?? 0) + unanswered + answered,
      unanswered: (before?.unanswered ?? 0) + unanswered,
      isOneClient: isOneClient && (before === undefined || (before.isOneClient && before.client === client)),
      client,
    })
  }
  return [...rows.values()]
    .map(({ client: _, protocol, ...row }) => ({
      ...row,
      protocol: protocol === 'UDP' ? ('UDP' as const) : ('TCP' as const),
      isOneWay: protocol === 'UDP' && !answering.has(row.service),
    }))
    .toSorted(worstFirst)
}
