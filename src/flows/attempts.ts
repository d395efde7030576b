import type { Clock } from '../base/clock.ts'
import type { Ip } from '../base/ip.ts'
import type { Octets } from '../base/octets.ts'
import type { ConntrackReader } from '../kernel/conntrack/client.ts'
import { type Flow, IPS_SEEN_REPLY, socketKey } from '../kernel/conntrack/flow.ts'
import { flowOf, progressOf, showsAnswer } from '../kernel/conntrack/progress.ts'
import { decodeRecord } from '../kernel/conntrack/record.ts'
import { answeredTimeout, type Timeouts } from '../kernel/conntrack/timeouts.ts'
import { outMax } from '../model/balance.ts'
import type { Protocol } from '../model/service.ts'

/*
 * Which endpoints leave connection attempts without an answer while others of their port answer, by entries of conntrack
 * alone: docs/decisions/0056-passive-fail-over.md has the reasons of each limit.
 */

/** An endpoint that lives answers within it: the first retransmission timeout of TCP (RFC 6298, section 2.1). */
const ANSWER_MS = 1_000
/** Attempts and answers whose last packet is older say nothing about now. */
const RECENT_S = 10
/** Attempts without an answer from which an endpoint counts as silent: fewer may be one client that gave up. */
export const ATTEMPTS_MIN = 3
/** Clients whose attempts count although no other endpoint answers them. Fewer may all be denied by a policy. */
const CLIENTS_MIN = 3
/** Attempts that one reading remembers, some 10 MB. Those beyond it are not seen. */
const ATTEMPTS_MAX = 65_536
/** Clients of an endpoint that one reading remembers. */
const CLIENTS_MAX = 1_024

export interface Attempt {
  readonly client: Ip
  /** The entry, for its deletion. */
  readonly flow: Flow
  /** When a reading found it first. */
  readonly sinceMs: number
}

/** Attempts by placeKey of their endpoint. */
export type Attempts = ReadonlyMap<Octets, readonly Attempt[]>

interface Answered {
  /** When the endpoint answered last, as exactly as conntrack says: up to a second later. */
  atMs: number
  /** The clients that it answered. */
  readonly clients: Set<Ip>
}

/** What endpoints answered lately, by placeKey. */
export type Answers = ReadonlyMap<Octets, Answered>

/** Identifies an endpoint of a service port. */
export function placeKey(protocol: Protocol, ip: Ip, port: number): Octets {
  return protocol + socketKey(ip, port)
}

export interface AttemptReaderOptions {
  readonly conntrack: Pick<ConntrackReader, 'dumpByReply'>
  readonly clock: Pick<Clock, 'nowMs'>
}

/** Reads attempts and answers from conntrack. Both methods reject where it cannot be read. */
export class AttemptReader {
  readonly #options: AttemptReaderOptions
  /** When each attempt of the last reading was first found. */
  #since: ReadonlyMap<Octets, number> = new Map()

  constructor(options: AttemptReaderOptions) {
    this.#options = options
  }

  /** Gives the attempts to translated destinations that an earlier reading found without an answer, too. */
  async unanswered({ seconds }: Timeouts): Promise<Attempts> {
    const { conntrack, clock } = this.#options
    const nowMs = clock.nowMs()
    const since = new Map<Octets, number>()
    const found = new Map<Octets, Attempt[]>()
    await conntrack.dumpByReply({ isAnswered: false, isDnat: true }, (view, message) => {
      const { status = 0, timeoutS } = progressOf(view, message)
      if ((status & IPS_SEEN_REPLY) !== 0 || timeoutS === undefined || since.size >= ATTEMPTS_MAX) return
      const record = decodeRecord(view, message)
      // The kernel forgets an INIT of SCTP after 3 s: few would be seen twice.
      if (record === undefined || record.protocol === 'SCTP') return
      const full = seconds(record.protocol === 'TCP' ? 'tcp_timeout_syn_sent' : 'udp_timeout')
      if (full - timeoutS > RECENT_S) return
      const flow = flowOf(view, message, record)
      const entry = `${flow.id} ${flow.tuple}`
      const sinceMs = this.#since.get(entry) ?? nowMs
      since.set(entry, sinceMs)
      if (nowMs - sinceMs < ANSWER_MS) return
      const place = placeKey(record.protocol, record.answerer, record.answererPort)
      const attempts = found.get(place) ?? []
      found.set(place, attempts)
      attempts.push({ client: record.client, flow, sinceMs })
    })
    this.#since = since
    return found
  }

  /** Gives when these places answered last, for those that answered in the last seconds. */
  async answers(places: ReadonlySet<Octets>, { seconds }: Timeouts): Promise<Answers> {
    const { conntrack, clock } = this.#options
    const found = new Map<Octets, Answered>()
    await conntrack.dumpByReply({ isAnswered: true, isDnat: true }, (view, message) => {
      const progress = progressOf(view, message)
      if (!showsAnswer(progress) || progress.timeoutS === undefined) return
      const agoS = seconds(answeredTimeout(progress)) - progress.timeoutS
      if (agoS > RECENT_S) return
      const record = decodeRecord(view, message)
      if (record === undefined) return
      const place = placeKey(record.protocol, record.answerer, record.answererPort)
      if (!places.has(place)) return
      const atMs = clock.nowMs() - agoS * 1_000
      const answered = found.get(place) ?? { atMs, clients: new Set() }
      found.set(place, answered)
      answered.atMs = Math.max(answered.atMs, atMs)
      if (answered.clients.size < CLIENTS_MAX) answered.clients.add(record.client)
    })
    return found
  }
}

/** The endpoints of one port of a Service in one family. */
export interface PortPlaces {
  /** All that would get connections if none were silent. */
  readonly places: readonly Octets[]
  readonly isOut: (place: Octets) => boolean
}

/** Gives the places of a port that are to be taken out now, with the number of their attempts. Pure. */
export function silentIn({ places, isOut }: PortPlaces, attempts: Attempts, answers: Answers) {
  const used = places.filter(place => !isOut(place))
  const waiting = new Map(used.map(place => [place, sinceAnswer(place, attempts, answers)]))
  const isQuiet = (place: Octets) => (waiting.get(place)?.length ?? 0) >= ATTEMPTS_MIN
  const living = used.flatMap(place => (isQuiet(place) ? [] : (answers.get(place) ?? [])))
  const silent = used.filter(isQuiet).flatMap(place => {
    const its = waiting.get(place) ?? []
    return isBelievable(its, living) ? [{ place, attempts: its.length }] : []
  })
  const room = Math.max(0, outMax(places.length) - (places.length - used.length))
  return silent.toSorted((a, b) => b.attempts - a.attempts).slice(0, room)
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
  const meanwhile = living.filter(({ atMs }) => atMs >= beganMs)
  const clients = [...new Set(attempts.map(({ client }) => client))]
  if (clients.length >= CLIENTS_MIN) return meanwhile.length > 0
  return meanwhile.some(answered => clients.some(client => answered.clients.has(client)))
}
