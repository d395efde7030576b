import { compareTexts, count } from '../../base/text.ts'
import { podText } from '../../model/pod-names.ts'

/** Connections to one endpoint of a service port that sent a packet in the last minute, as conntrack holds them. */
export interface UnansweredRow {
  /** `namespace/name:port`, as `top` names service ports. */
  readonly service: string
  readonly protocol: 'TCP' | 'UDP'
  /** `address:port`. */
  readonly endpoint: string
  /** `namespace/name` of the Pod, where the EndpointSlice names it. */
  readonly pod?: string
  /** Connections that are old enough to have met an answer. */
  readonly connections: number
  /** Those of them that met none. */
  readonly unanswered: number
  /** All that met none come from one address. */
  readonly isOneClient: boolean
  /** A UDP port that never answers anybody (syslog, statsd): no trouble. */
  readonly isOneWay: boolean
}

/** Endpoints that a metric, a page and a document name at most. */
export const WORST_MAX = 50

export interface Unanswered {
  /** Endpoints with unanswered connections, the most unanswered first, one-way ports last. */
  readonly rows: readonly UnansweredRow[]
  /** The length of the time that was seen, in s: 60, or the shorter time that the kernel keeps a SYN; 0 where nothing was seen. */
  readonly seenS: number
  /** Why the rows are not the whole truth, such as "no conntrack"; absent where they are. */
  readonly limits?: string
}

/**
 * Tests whether an endpoint is in trouble: at least `least` connections met no answer, and these are more than half. One
 * client among others that are answered is not enough: a policy may deny it, or it may scan.
 */
export function isSilent(row: UnansweredRow, least = 1): boolean {
  const { connections, unanswered, isOneClient, isOneWay } = row
  if (isOneWay || unanswered < least || unanswered * 2 <= connections) return false
  return !isOneClient || unanswered === connections
}

/** `41 of 41 connections to 10.1.0.1:8080 (pod shop/cart-7f) had no reply in the last minute`. */
export function unansweredText({ connections, unanswered, endpoint, pod }: UnansweredRow): string {
  return `${unanswered} of ${count(connections, 'connection')} to ${podText(endpoint, pod)} had no reply in the last minute`
}

export function worstFirst(a: UnansweredRow, b: UnansweredRow): number {
  return (
    Number(a.isOneWay) - Number(b.isOneWay) ||
    b.unanswered - a.unanswered ||
    compareTexts(a.service, b.service) ||
    compareTexts(a.endpoint, b.endpoint)
  )
}
