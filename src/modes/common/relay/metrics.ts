import type { ModeMetric } from '../../../telemetry/mode-metrics.ts'

/** The traffic of this process since the mode began. */
export interface RelayCounts {
  readonly listeners: number
  readonly tcp: FlowCounts
  readonly udp: FlowCounts
  /** Connections and UDP clients of this process that came back to it, and were closed. */
  readonly loops: number
}

interface FlowCounts {
  /** The current number of connections, or of UDP clients. */
  readonly held: number
  /** Refused connections and lost datagrams, because of the limits. */
  readonly refused: number
}

/** Makes the metrics. Pure. */
export function relayMetrics({ listeners, tcp, udp, loops }: RelayCounts): readonly ModeMetric[] {
  const plain = (value: number) => ({ labelNames: [], values: [{ labels: {}, value }] })
  const byProtocol = (count: keyof FlowCounts) => ({
    labelNames: ['protocol'],
    values: [
      { labels: { protocol: 'TCP' }, value: tcp[count] },
      { labels: { protocol: 'UDP' }, value: udp[count] },
    ],
  })
  return [
    {
      name: 'kprobe_relay_listeners',
      help: 'Sockets that receive connections to Services.',
      kind: 'gauge',
      ...plain(listeners),
    },
    {
      name: 'kprobe_relay_connections',
      help: 'Connections (TCP) and clients (UDP) that are relayed now.',
      kind: 'gauge',
      ...byProtocol('held'),
    },
    {
      name: 'kprobe_relay_refused_total',
      help: 'Connections rejected and datagrams dropped because of the relay limits.',
      kind: 'counter',
      ...byProtocol('refused'),
    },
    {
      name: 'kprobe_relay_loops_total',
      help: 'Connections of the relay that reached the relay again and were closed.',
      kind: 'counter',
      ...plain(loops),
    },
  ]
}
