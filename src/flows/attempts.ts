import type { Clock } from '../base/clock.ts'
import type { Ip } from '../base/ip.ts'
import type { Octets } from '../base/octets.ts'
import type { ConntrackReader, TakeEntry } from '../kernel/conntrack/client.ts'
import { type Flow, IPS_SEEN_REPLY, socketKey } from '../kernel/conntrack/flow.ts'
import { flowOf, type Progress, progressOf } from '../kernel/conntrack/progress.ts'
import { decodeRecord, type FlowRecord } from '../kernel/conntrack/record.ts'
import { answeredTimeout, type Timeouts } from '../kernel/conntrack/timeouts.ts'
import { outMax } from '../model/balance.ts'
import type { SilentEndpoint } from '../model/service.ts'
import { Stopped } from './pass.ts'

/*
 * Which endpoints leave connection attempts without an answer while others of their port answer, by entries of conntrack
 * alone: docs/decisions/0056-passive-fail-over.md has the reasons of each limit.
 */

/** An endpoint that lives answers within it: the first retransmission timeout of TCP (RFC 6298, section 2.1). */
const ANSWER_MS = 1_000
/** Attempts and answers whose last packet is older say nothing about now. */
const RECENT_S = 10
/** Attempts without an answer from which an endpoint counts as silent: fewer may be one client that gave up. */
const ATTEMPTS_MIN = 3
/** Clients whose attempts count although no other endpoint answers them. Fewer may all be denied by a policy. */
const CLIENTS_MIN = 3
/** Attempts that one reading remembers, some 10 MB. Those beyond it are not seen. */
const ATTEMPTS_MAX = 65_536
/** Answered entries that one reading remembers, some 5 MB. With more, nothing can be judged. */
const ANSWERED_MAX = 262_144
/** Clients that an endpoint is known to have answered. Beyond it, all are forgotten and learnt anew. */
const CLIENTS_MAX = 1_024

/** TCP_CONNTRACK_* of linux/netfilter/nf_conntrack_tcp.h. */
const SYN_SENT = 1
const CLOSE = 8

export interface Attempt {
  readonly client: Ip
  /** The entry, for its deletion. */
  readonly flow: Flow
  /** When a reading found it first. */
  readonly sinceMs: number
}

/** Attempts by placeKey of their endpoint. */
export type Attempts = ReadonlyMap<Octets, readonly Attempt[]>

interface Unanswered {
  /** Those that an earlier reading found, too. */
  readonly waiting: Attempts
  /** The addresses with enough attempts for a silent endpoint, new ones included. */
  readonly suspects: ReadonlySet<Ip>
}

interface Answered {
  /** The endpoint has answered nothing later. */
  atMs: number
  /** When it completed a handshake, or answered a first packet of UDP, by client. */
  readonly clients: Map<Ip, number>
}

/** What endpoints answered lately, by placeKey. */
export type Answers = ReadonlyMap<Octets, Answered>

/** Identifies an endpoint of a service port. */
export function placeKey({ protocol, ip, port }: SilentEndpoint): Octets {
  return protocol + socketKey(ip, port)
}

interface AttemptReaderOptions {
  readonly conntrack: Pick<ConntrackReader, 'dumpByReply'>
  readonly clock: Pick<Clock, 'nowMs'>
  /** Tests at every entry whether to give up with Stopped. */
  readonly isStopped: () => boolean
}

/** Reads attempts and answers from conntrack. Both methods reject where it cannot be read. */
export class AttemptReader {
  readonly #options: AttemptReaderOptions
  /** When each attempt of the last reading was first found. */
  #since: ReadonlyMap<Octets, number> = new Map()
  /** The ids of the answered entries of the last reading; undefined if there is none to compare with. */
  #known: ReadonlySet<number> | undefined
  /** Since the first reading of them. */
  #answers = new Map<Octets, Answered>()

  constructor(options: AttemptReaderOptions) {
    this.#options = options
  }

  /** Gives the attempts to translated destinations. */
  async unanswered({ seconds }: Timeouts): Promise<Unanswered> {
    const nowMs = this.#options.clock.nowMs()
    const since = new Map<Octets, number>()
    const waiting = new Map<Octets, Attempt[]>()
    const counts = new Map<Ip, number>()
    await this.#dump(false, ({ protocolInfo, timeoutS = 0 }, ...entry) => {
      // An entry that begins in the middle of a stream is ESTABLISHED, and its endpoint may have nothing to send.
      if (since.size >= ATTEMPTS_MAX || (protocolInfo?.tcp?.state ?? SYN_SENT) !== SYN_SENT) return
      const record = recordOf(...entry)
      // The kernel forgets an INIT of SCTP after 3 s: few would be seen twice.
      if (record === undefined || record.protocol === 'SCTP') return
      const full = seconds(record.protocol === 'TCP' ? 'tcp_timeout_syn_sent' : 'udp_timeout')
      if (full - timeoutS > RECENT_S) return
      const flow = flowOf(...entry, record)
      const identity = `${flow.id} ${flow.tuple}`
      const sinceMs = this.#since.get(identity) ?? nowMs
      since.set(identity, sinceMs)
      counts.set(record.answerer, (counts.get(record.answerer) ?? 0) + 1)
      if (nowMs - sinceMs < ANSWER_MS) return
      const place = placeOf(record)
      const attempts = waiting.get(place) ?? []
      waiting.set(place, attempts)
      attempts.push({ client: record.client, flow, sinceMs })
    })
    this.#since = since
    const suspects = [...counts].flatMap(([ip, count]) => (count < ATTEMPTS_MIN ? [] : [ip]))
    return { waiting, suspects: new Set(suspects) }
  }

  /**
   * Gives what endpoints answered lately. Only an entry that the reading before did not find shows an answer: packets of
   * the client alone renew older ones and lead them through most states. The first reading finds only when an endpoint
   * may have answered.
   */
  async answers({ seconds }: Timeouts): Promise<Answers> {
    const nowMs = this.#options.clock.nowMs()
    const before = this.#known
    const known = new Set<number>()
    this.#known = undefined
    const isWhole = await this.#dump(true, (progress, ...entry) => {
      if (known.size >= ANSWERED_MAX) throw new Error(`more than ${ANSWERED_MAX} connections to compare`)
      // 32 bits with a sign are numbers that a Set holds in itself.
      const id = (progress.id ?? 0) | 0
      known.add(id)
      if (before?.has(id)) return
      const agoS = before === undefined ? seconds(answeredTimeout(progress)) - (progress.timeoutS ?? 0) : 0
      if (agoS > RECENT_S) return
      const record = recordOf(...entry)
      if (record === undefined) return
      const atMs = nowMs - agoS * 1_000
      const place = placeOf(record)
      const answered = this.#answers.get(place) ?? { atMs, clients: new Map() }
      this.#answers.set(place, answered)
      answered.atMs = Math.max(answered.atMs, atMs)
      // The endpoint may have refused a connection that is closed.
      if (before === undefined || progress.protocolInfo?.tcp?.state === CLOSE) return
      if (answered.clients.size >= CLIENTS_MAX) answered.clients.clear()
      answered.clients.set(record.client, nowMs)
    })
    if (isWhole) this.#known = known
    return this.#answers
  }

  /** Forgets the answers: the next reading of them is the first again. */
  forgetAnswers(): void {
    this.#known = undefined
    this.#answers = new Map()
  }

  forget(): void {
    this.#since = new Map()
    this.forgetAnswers()
  }

  #dump(isAnswered: boolean, take: (progress: Progress, ...entry: Parameters<TakeEntry>) => void) {
    const { conntrack, isStopped } = this.#options
    return conntrack.dumpByReply({ isAnswered, isDnat: true }, (view, message) => {
      if (isStopped()) throw new Stopped()
      const progress = progressOf(view, message)
      const hasReply = ((progress.status ?? 0) & IPS_SEEN_REPLY) !== 0
      // Linux before 5.15 lists the others, too.
      if (hasReply === isAnswered) take(progress, view, message)
    })
  }
}

/** Decodes an entry; undefined for a pod that connects to itself, which a network without hairpin never answers. */
function recordOf(...entry: Parameters<TakeEntry>): FlowRecord | undefined {
  const record = decodeRecord(...entry)
  return record?.client === record?.answerer ? undefined : record
}

function placeOf({ protocol, answerer, answererPort }: FlowRecord): Octets {
  return placeKey({ protocol, ip: answerer, port: answererPort })
}

/** A list of endpoints of a port. */
interface ListPlaces {
  /** All that would get connections if none were silent. */
  readonly places: readonly Octets[]
  readonly isOut: (place: Octets) => boolean
}

interface Judgment {
  /** The places that are to be taken out now, with the number of their attempts. */
  readonly silent: ReadonlyMap<Octets, number>
  /** All that are used leave attempts without an answer. */
  readonly isDead: boolean
}

/** Judges the endpoints of one list. Pure. */
export function judgeList({ places, isOut }: ListPlaces, attempts: Attempts, answers: Answers): Judgment {
  const used = places.filter(place => !isOut(place))
  const waiting = new Map(used.map(place => [place, sinceAnswer(place, attempts, answers)]))
  const isQuiet = (place: Octets) => (waiting.get(place)?.length ?? 0) >= ATTEMPTS_MIN
  const living = used.flatMap(place => (isQuiet(place) ? [] : (answers.get(place) ?? [])))
  const silent = used.filter(isQuiet).flatMap(place => {
    const its = waiting.get(place) ?? []
    return isBelievable(its, living) ? [[place, its.length] as const] : []
  })
  const room = Math.max(0, outMax(places.length) - (places.length - used.length))
  const first = silent.toSorted(([, a], [, b]) => b - a).slice(0, room)
  return { silent: new Map(first), isDead: used.length > 0 && used.every(isQuiet) }
}

/** Gives the attempts that began after the endpoint answered last. */
function sinceAnswer(place: Octets, attempts: Attempts, answers: Answers): readonly Attempt[] {
  const answeredMs = answers.get(place)?.atMs ?? Number.NEGATIVE_INFINITY
  return (attempts.get(place) ?? []).filter(({ sinceMs }) => sinceMs > answeredMs)
}

/**
 * Tests whether others answered while these attempts waited. Clients that a policy denies, and scanners, get an answer
 * nowhere: one client alone counts only if another endpoint answers it.
 */
function isBelievable(attempts: readonly Attempt[], living: readonly Answered[]): boolean {
  const beganMs = attempts.reduce((first, { sinceMs }) => Math.min(first, sinceMs), Number.POSITIVE_INFINITY)
  const waiting = new Set(attempts.map(({ client }) => client))
  const isAnyClient = waiting.size >= CLIENTS_MIN
  return living.some(({ clients }) =>
    [...clients].some(([client, atMs]) => atMs >= beganMs && (isAnyClient || waiting.has(client))),
  )
}
