import { formatIpPort } from '../base/ip.ts'
import { bytesText, oneLine, rfc3339 } from '../base/text.ts'
import type { FlowEventKind, Volume } from '../kernel/conntrack/record.ts'
import { endpointText, type FlowGroup, type Grouping, type NamedFlow } from './flow-groups.ts'
import type { Io } from './io.ts'
import { tableText } from './output.ts'

/** What happened to a connection: `open` for an entry of the present table. */
type LineKind = FlowEventKind | 'open'

/** A connection as one line of JSON; fields that are not known are absent. */
export function flowJson(kind: LineKind, flow: NamedFlow, wallMs: number): object {
  const { protocol, service, client, clientPort, destination, destinationPort, volume } = flow
  return {
    time: rfc3339(wallMs),
    event: kind,
    protocol,
    service,
    client: formatIpPort(client, clientPort),
    destination: formatIpPort(destination, destinationPort),
    endpoint: endpointText(flow),
    ...volume,
    startedAt: flow.startNs === undefined ? undefined : rfc3339(Number(flow.startNs / NS_PER_MS)),
    durationMs: durationMs(flow, wallMs),
  }
}

const NS_PER_MS = 1_000_000n

/** Gives the time from start to end, or to now; undefined where the kernel keeps no times. */
function durationMs({ startNs, stopNs }: NamedFlow, wallMs: number): number | undefined {
  if (startNs === undefined) return undefined
  const endMs = stopNs === undefined ? wallMs : Number(stopNs / NS_PER_MS)
  return Math.max(0, Math.round(endMs - Number(startNs / NS_PER_MS)))
}

/** `10:21:03.123 new   TCP 10.0.0.5:4000 > shop/cart:http (10.96.0.1:80) > 10.1.0.1:8080`. */
export function flowLine(kind: LineKind, flow: NamedFlow, wallMs: number): string {
  const { protocol, service, client, clientPort, destination, destinationPort } = flow
  const to = formatIpPort(destination, destinationPort)
  const endpoint = endpointText(flow)
  const text = [
    new Date(wallMs).toISOString().slice(11, 23),
    kind.padEnd(5),
    protocol.padEnd(4),
    `${formatIpPort(client, clientPort)} > ${service === undefined ? to : `${service} (${to})`}`,
    ...(endpoint === undefined ? [] : [`> ${endpoint}`]),
    ...(flow.volume === undefined ? [] : [volumeText(flow.volume)]),
    ...(kind === 'ended' ? [timeText(durationMs(flow, wallMs))] : []),
  ]
  return oneLine(text.filter(part => part !== '').join(' '))
}

function volumeText({ packetsSent, packetsReceived, bytesSent, bytesReceived }: Volume): string {
  return `sent ${packetsSent} packets, ${bytesText(bytesSent)}; received ${packetsReceived}, ${bytesText(bytesReceived)}`
}

function timeText(ms: number | undefined): string {
  return ms === undefined ? '' : `in ${secondsText(ms)}`
}

/** `0.350s`, `12.3s`, `4m10s`. */
export function secondsText(ms: number): string {
  if (ms < 10_000) return `${(ms / 1000).toFixed(ms < 1000 ? 3 : 1)}s`
  const seconds = Math.round(ms / 1000)
  if (seconds < 60) return `${seconds}s`
  if (seconds < 3_600) return `${Math.floor(seconds / 60)}m${seconds % 60}s`
  return `${Math.floor(seconds / 3_600)}h${Math.floor((seconds % 3_600) / 60)}m`
}

/** The columns of the present table; those that the kernel does not fill are absent. */
export function flowTable(flows: readonly NamedFlow[], wallMs: number) {
  const hasVolume = flows.some(({ volume }) => volume !== undefined)
  const hasTime = flows.some(({ startNs }) => startNs !== undefined)
  return {
    heading: [
      'SERVICE',
      'PROTOCOL',
      'CLIENT',
      'DESTINATION',
      'ENDPOINT',
      ...(hasVolume ? ['SENT', 'RECEIVED'] : []),
      ...(hasTime ? ['AGE'] : []),
    ],
    rows: flows.map(flow => {
      const age = durationMs(flow, wallMs)
      return [
        flow.service ?? '-',
        flow.protocol,
        formatIpPort(flow.client, flow.clientPort),
        formatIpPort(flow.destination, flow.destinationPort),
        endpointText(flow) ?? '-',
        ...(hasVolume ? volumeCells(flow.volume) : []),
        ...(hasTime ? [age === undefined ? '-' : secondsText(age)] : []),
      ]
    }),
  }
}

function volumeCells(volume: Volume | undefined): readonly string[] {
  return volume === undefined ? ['-', '-'] : [bytesText(volume.bytesSent), bytesText(volume.bytesReceived)]
}

/** What the counts of groups mean. */
interface GroupCounts {
  readonly by: Grouping
  /** `open`: the entries of the present table. */
  readonly of: 'open' | 'events'
}

export function groupTable(groups: readonly FlowGroup[], { by, of }: GroupCounts) {
  const hasVolume = groups.some(({ volume }) => volume !== undefined)
  const others = by === 'service' ? [] : [by.toUpperCase()]
  return {
    heading: [
      'SERVICE',
      'PROTOCOL',
      ...others,
      ...(of === 'open' ? ['OPEN'] : ['NEW', 'ENDED']),
      ...(hasVolume ? ['SENT', 'RECEIVED'] : []),
    ],
    rows: groups.map(({ service, protocol, endpoint, client, begun, ended, volume }) => [
      service ?? '-',
      protocol,
      ...(by === 'service' ? [] : [endpoint ?? client ?? '-']),
      `${begun}`,
      ...(of === 'open' ? [] : [`${ended}`]),
      ...(hasVolume ? volumeCells(volume) : []),
    ]),
  }
}

export function groupJson(group: FlowGroup, { of }: GroupCounts, wallMs: number): object {
  const { protocol, service, endpoint, client, begun, ended, volume } = group
  const counts = of === 'open' ? { open: begun } : { new: begun, ended }
  return { time: rfc3339(wallMs), protocol, service, endpoint, client, ...counts, ...volume }
}

export function textOf(
  { heading, rows }: ReturnType<typeof groupTable>,
  { color }: Pick<Io, 'color'>,
): string {
  return tableText(heading, rows, { color })
}
