/** Connections to one endpoint of a service port that began in the last minute, as conntrack holds them. */
export interface UnansweredRow {
  /** `namespace/name:port`, as `top` names service ports. */
  readonly service: string
  readonly protocol: 'TCP' | 'UDP' | 'SCTP'
  /** `address:port`. */
  readonly endpoint: string
  /** `namespace/name` of the Pod, where the EndpointSlice names it. */
  readonly pod?: string
  /** Connections that are old enough to have met an answer. */
  readonly connections: number
  /** Those of them that met none. */
  readonly unanswered: number
  /** A UDP port that never answers anybody (syslog, statsd): no trouble. */
  readonly isOneWay: boolean
}

export interface Unanswered {
  /** The most unanswered first. */
  readonly rows: readonly UnansweredRow[]
  /** The length of the time that was seen, in s: less than 60 just after the start. */
  readonly seenS: number
  /** Why the rows are not the whole truth, such as "no conntrack"; absent where they are. */
  readonly limits?: string
}
