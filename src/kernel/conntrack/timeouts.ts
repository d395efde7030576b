import type { ValuesOf } from '../../netlink/schema.ts'
import { IPS_ASSURED, type PROGRESS } from './flow.ts'

/** Timeouts of nf_conntrack (nf_conntrack_proto_tcp.c, nf_conntrack_proto_udp.c), with their defaults in s. */
const TIMEOUTS = {
  tcp_timeout_syn_sent: 120,
  tcp_timeout_syn_recv: 60,
  tcp_timeout_established: 432_000,
  tcp_timeout_fin_wait: 120,
  tcp_timeout_close_wait: 60,
  tcp_timeout_last_ack: 30,
  tcp_timeout_time_wait: 120,
  tcp_timeout_close: 10,
  udp_timeout: 30,
  udp_timeout_stream: 120,
} as const
type Timeout = keyof typeof TIMEOUTS

/** By TCP_CONNTRACK_* (linux/netfilter/nf_conntrack_tcp.h). */
const TCP_TIMEOUTS: readonly Timeout[] = [
  'tcp_timeout_established',
  'tcp_timeout_syn_sent',
  'tcp_timeout_syn_recv',
  'tcp_timeout_established',
  'tcp_timeout_fin_wait',
  'tcp_timeout_close_wait',
  'tcp_timeout_last_ack',
  'tcp_timeout_time_wait',
  'tcp_timeout_close',
  'tcp_timeout_syn_sent',
]

/** Gives the timeout that the last packet set. That of data without an acknowledgement is shorter, so the connection counts as old. */
export function answeredTimeout({ status = 0, protocolInfo }: ValuesOf<typeof PROGRESS>): Timeout {
  const tcp = protocolInfo?.tcp
  if (tcp !== undefined) return TCP_TIMEOUTS[tcp.state ?? 0] ?? 'tcp_timeout_established'
  return (status & IPS_ASSURED) === 0 ? 'udp_timeout' : 'udp_timeout_stream'
}

export interface Timeouts {
  /** False where the settings cannot be read: `seconds` then gives the defaults. */
  readonly isKnown: boolean
  readonly seconds: (name: Timeout) => number
}

/** Reads the timeouts of this network namespace, each when it is first asked for. */
export function readTimeouts(setting: (path: string) => number | undefined): Timeouts {
  const read = (name: Timeout) => setting(`/proc/sys/net/netfilter/nf_conntrack_${name}`)
  const known = new Map<Timeout, number | undefined>()
  const seconds = (name: Timeout): number => {
    if (!known.has(name)) known.set(name, read(name))
    return known.get(name) ?? TIMEOUTS[name]
  }
  return { isKnown: read('tcp_timeout_syn_sent') !== undefined, seconds }
}
