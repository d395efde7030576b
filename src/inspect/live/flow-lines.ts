import { secondsText } from '../../base/duration.ts'
import { formatIpPort } from '../../base/ip.ts'
import { bytesText, oneLine, rfc3339 } from '../../base/text.ts'
import type { FlowEventKind, Volume } from '../../kernel/conntrack/record.ts'
import { podText } from '../../model/pod-names.ts'
import { endpointText, type FlowGroup, type Grouping, type NamedFlow } from './flow-groups.ts'

/** The event of a connection; `open` for an entry of the present table. */
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
    pod: flow.pod,
    // A connection that has just begun has none yet.
    isAnswered: kind === 'new' ? undefined : flow.isAnswered,
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

/** `10:21:03.123Z new   TCP 10.0.0.5:4000 > shop/cart:http (10.96.0.1:80) > 10.1.0.1:8080`. */
export function flowLine(kind: LineKind, flow: NamedFlow, wallMs: number): string {
  const { protocol, service, client, clientPort, destination, destinationPort } = flow
  const to = formatIpPort(destination, destinationPort)
  const endpoint = endpointText(flow)
  const text = [
    new Date(wallMs).toISOString().slice(11),
    kind.padEnd(5),
    protocol.padEnd(4),
    `${formatIpPort(client, clientPort)} > ${service === undefined ? to : `${service} (${to})`}`,
    ...(endpoint === undefined ? [] : [`> ${podText(endpoint, flow.pod)}`]),
    ...(flow.volume === undefined ? [] : [volumeText(flow.volume)]),
    ...(kind === 'new' || flow.isAnswered ? [] : ['no reply']),
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

export type Columns<Row> = readonly (readonly [heading: string, cell: (row: Row) => string])[]

/** The column of Pods; none where none is known. */
function podColumn<Row extends { readonly pod: string | undefined }>(rows: readonly Row[]): Columns<Row> {
  return rows.some(({ pod }) => pod !== undefined) ? [['POD', ({ pod }) => pod ?? '-']] : []
}

interface Counted {
  readonly volume?: Volume | undefined
}

/** The columns of volumes; none where the kernel counts none. */
function volumeColumns(rows: readonly Counted[]): Columns<Counted> {
  if (rows.every(({ volume }) => volume === undefined)) return []
  const cell = (which: 'bytesSent' | 'bytesReceived') => (row: Counted) =>
    row.volume === undefined ? '-' : bytesText(row.volume[which])
  return [
    ['SENT', cell('bytesSent')],
    ['RECEIVED', cell('bytesReceived')],
  ]
}

/** Gives the columns of the present table; those that the kernel does not fill are absent. */
export function flowColumns(flows: readonly NamedFlow[], wallMs: number): Columns<NamedFlow> {
  const age = (flow: NamedFlow) => {
    const ms = durationMs(flow, wallMs)
    return ms === undefined ? '-' : secondsText(ms)
  }
  return [
    ['SERVICE', flow => flow.service ?? '-'],
    ['PROTOCOL', flow => flow.protocol],
    ['CLIENT', flow => formatIpPort(flow.client, flow.clientPort)],
    ['DESTINATION', flow => formatIpPort(flow.destination, flow.destinationPort)],
    ['ENDPOINT', flow => endpointText(flow) ?? '-'],
    ...podColumn(flows),
    ...(flows.every(({ isAnswered }) => isAnswered)
      ? []
      : [['REPLY', (flow: NamedFlow) => (flow.isAnswered ? 'yes' : 'none')] as const]),
    ...volumeColumns(flows),
    ...(flows.some(({ startNs }) => startNs !== undefined) ? [['AGE', age] as const] : []),
  ]
}

/** What groups count: the entries of the present table, or events. */
export type GroupsOf = 'open' | 'events'

export function groupColumns(groups: readonly FlowGroup[], by: Grouping, of: GroupsOf): Columns<FlowGroup> {
  return [
    ['SERVICE', ({ service }) => service ?? '-'],
    ['PROTOCOL', ({ protocol }) => protocol],
    ...(by === 'service'
      ? []
      : [[by.toUpperCase(), (row: FlowGroup) => row.endpoint ?? row.client ?? '-'] as const]),
    ...podColumn(groups),
    [of === 'open' ? 'OPEN' : 'NEW', ({ begun }) => `${begun}`],
    ...(of === 'open' ? [] : [['ENDED', ({ ended }: FlowGroup) => `${ended}`] as const]),
    ...(groups.every(({ unanswered }) => unanswered === 0)
      ? []
      : [['NO REPLY', ({ unanswered }: FlowGroup) => `${unanswered}`] as const]),
    ...volumeColumns(groups),
  ]
}

export function groupJson(group: FlowGroup, of: GroupsOf): object {
  const { protocol, service, endpoint, pod, client, begun, ended, unanswered, volume } = group
  const counts = of === 'open' ? { open: begun, unanswered } : { new: begun, ended, unanswered }
  return { time: rfc3339(Date.now()), protocol, service, endpoint, pod, client, ...counts, ...volume }
}
