import type { ModeMetric } from '../../telemetry/mode-metrics.ts'

/** The traffic of this process since the mode began. */
export interface RelayNumbers {
  readonly listeners: number
  readonly tcp: FlowNumbers
  readonly udp: FlowNumbers
  /** Connections and UDP clients of this process that came back to it, and were closed. */
  readonly loops: number
}

interface FlowNumbers {
  /** The current number of connections, or of UDP clients. */
  readonly held: number
  /** Refused connections and lost datagrams, because of the limits. */
  readonly refused: number
}

/** Makes the metrics. Pure. */
export function relayMetrics({ listeners, tcp, udp, loops }: RelayNumbers): readonly ModeMetric[] {
  const plain = (value: number): Pick<ModeMetric, 'labelNames' | 'values'> => ({
    labelNames: [],
    values: [{ labels: {}, value }],
  })
  const byProtocol = (value: (flow: FlowNumbers) => number): Pick<ModeMetric, 'labelNames' | 'values'> => ({
    labelNames: ['protocol'],
    values: [
      { labels: { protocol: 'TCP' }, value: value(tcp) },
      { labels: { protocol: 'UDP' }, value: value(udp) },
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
      ...byProtocol(({ held }) => held),
    },
    {
      name: 'kprobe_relay_refused_total',
      help: 'Connections rejected and datagrams dropped because of the relay limits.',
      kind: 'counter',
      ...byProtocol(({ refused }) => refused),
    },
    {
      name: 'kprobe_relay_loops_total',
      help: 'Connections of the relay that reached the relay again and were closed.',
      kind: 'counter',
      ...plain(loops),
    },
  ]
}
