import { FAMILIES, type Family, formatCidr, formatIp, formatIpPort } from '../base/ip.ts'
import { compareTexts } from '../base/text.ts'
import type { Frontend, FrontendTable, NodePortAddresses, PortFrontends } from '../model/frontend.ts'
import { backendsAtLocalhost, LOCALHOST } from '../model/node-context.ts'
import { podText } from '../model/pod-names.ts'
import { endpointTexts, INCOMPLETE, type ServiceRow } from '../modes/common/show.ts'
import { type TableOptions, tableText } from './io.ts'

/** Makes rows in the order of sortedRows. */
export function serviceRows(
  table: FrontendTable,
  keys: Iterable<string> = table.services.keys(),
): ServiceRow[] {
  const rows: ServiceRow[] = []
  for (const key of keys) {
    const service = table.services.get(key)
    if (service === undefined) continue
    for (const port of service.ports)
      for (const frontend of port.frontends)
        rows.push(
          ...rowsOf(port, frontend, table.nodePorts[port.family]),
          ...localhostRows(port, frontend, table),
        )
  }
  return sortedRows(rows)
}

/** Sorts by Service, then by type, family and address, as every command prints rows. */
export function sortedRows(rows: readonly ServiceRow[]): ServiceRow[] {
  return [...rows].sort(
    (a, b) =>
      compareTexts(a.service, b.service) ||
      rankOf(a) - rankOf(b) ||
      compareTexts(a.frontend, b.frontend) ||
      compareTexts(a.protocol, b.protocol),
  )
}

const TYPES: readonly string[] = ['ClusterIP', 'External', 'NodePort']

/** IPv4 sorts before IPv6. */
function rankOf({ type, frontend }: ServiceRow): number {
  const rank = TYPES.indexOf(type)
  return (rank < 0 ? TYPES.length : rank) * 2 + (frontend.startsWith('[') ? 1 : 0)
}

function rowsOf(port: PortFrontends, frontend: Frontend, nodePorts: NodePortAddresses): ServiceRow[] {
  return addressesOf(port.family, frontend, nodePorts).map(address => ({
    service: port.displayName,
    type: frontend.kind === 'ClusterIP' || frontend.kind === 'NodePort' ? frontend.kind : 'External',
    protocol: port.protocol,
    frontend: address,
    ...routeOf(port, frontend),
    ...(frontend.sourceRanges === undefined ? {} : { allowedFrom: frontend.sourceRanges.map(formatCidr) }),
    ...(port.affinityTimeoutS === 0 ? {} : { affinitySeconds: port.affinityTimeoutS }),
  }))
}

/** Gives the row of a node port at localhost, if a relay serves it there. */
function localhostRows(
  port: PortFrontends,
  frontend: Frontend,
  { forwardedAtLocalhost = [] }: FrontendTable,
): ServiceRow[] {
  const { displayName: service, protocol, family, affinityTimeoutS } = port
  if (frontend.kind !== 'NodePort' || !forwardedAtLocalhost.includes(family)) return []
  const place = formatIpPort(LOCALHOST[family], frontend.port)
  const row = { service, type: frontend.kind, protocol, frontend: place }
  if (protocol === 'SCTP') return [{ ...row, action: 'reject', endpoints: [] }]
  const endpoints = endpointTexts(backendsAtLocalhost(port))
  if (endpoints.length === 0) return []
  const sticky = affinityTimeoutS === 0 ? {} : { affinitySeconds: affinityTimeoutS }
  return [{ ...row, action: 'relay', endpoints, ...sticky, listener: place }]
}

function routeOf(
  port: PortFrontends,
  { route }: Frontend,
): Pick<ServiceRow, 'action' | 'endpoints' | 'localEndpoints'> {
  const cluster = endpointTexts(port.cluster)
  const local = endpointTexts(port.local)
  switch (route.kind) {
    case 'reject':
    case 'drop':
      return { action: route.kind, endpoints: [] }
    case 'internal':
      return { action: 'balance', endpoints: route.over === 'local' ? local : cluster }
    case 'external-cluster':
      return { action: 'balance', endpoints: cluster }
    case 'external-local':
      return { action: 'balance', endpoints: cluster, localEndpoints: local }
  }
}

function addressesOf(family: Family, frontend: Frontend, nodePorts: NodePortAddresses): string[] {
  if (frontend.ip !== undefined) return [formatIpPort(frontend.ip, frontend.port)]
  const everywhere = family === 'IPv4' ? '*' : '[*]'
  if (nodePorts.kind === 'all') return [`${everywhere}:${frontend.port}`]
  return nodePorts.ips.map(ip => formatIpPort(ip, frontend.port))
}

/** Endpoints that a table names without --wide; JSON and YAML name all. */
const ENDPOINTS_SHOWN = 3

interface ServiceTableOptions extends TableOptions {
  /** Shows every endpoint and every source range. */
  readonly wide?: boolean
}

/** Formats rows as a table, with a column for the mode if there are several. */
export function serviceTable(rows: readonly ServiceRow[], options: ServiceTableOptions): string {
  const modes = new Set(rows.map(({ mode }) => mode))
  const withMode = modes.size > 1
  const shown = options.wide === true ? Number.POSITIVE_INFINITY : ENDPOINTS_SHOWN
  const cells = rows.map(row => [
    row.service,
    ...(withMode ? [row.mode ?? '-'] : []),
    row.type,
    row.protocol === '' ? row.frontend : `${row.frontend}/${row.protocol}`,
    cellOf(row, shown),
  ])
  const heading = ['SERVICE', ...(withMode ? ['MODE'] : []), 'TYPE', 'FRONTEND', 'ENDPOINTS']
  return tableText(heading, cells, options)
}

/** An unreachable row has no destination, whatever its elements contain. */
function cellOf(row: ServiceRow, shown: number): string {
  const { problem } = row
  if (problem === undefined) return destination(row, shown)
  return problem.startsWith(INCOMPLETE) ? `${destination(row, shown)} (${problem})` : problem
}

function destination(row: ServiceRow, shown: number): string {
  const listText = (items: readonly string[]) => shortList(items, shown)
  const { allowedFrom, listener, insideListener, affinitySeconds, balance, pods } = row
  const named = (list: readonly string[]) => list.map(address => podText(address, pods?.[address]))
  const endpoints = named(row.endpoints)
  const localEndpoints = row.localEndpoints && named(row.localEndpoints)
  const limits = allowedFrom === undefined ? [] : [`only from ${listText(allowedFrom)}`]
  if (listener !== undefined || insideListener !== undefined) {
    const inside = insideListener === undefined ? [] : [`from outside; pods and node: ${insideListener}`]
    const sticky = affinitySeconds === undefined ? [] : [`sticky ${affinitySeconds}s`]
    const to = endpoints.length === 0 ? '' : ` to ${listText(endpoints)}`
    const text = listener === undefined ? `none: ${row.action}` : `relayed at ${listener}${to}`
    return withNotes(text, [...inside, ...limits, ...sticky])
  }
  if (row.action !== 'balance') return `none: ${row.action}`
  const outside = localEndpoints ?? endpoints
  return withNotes(outside.length === 0 ? 'none: drop' : listText(outside), [
    ...(localEndpoints === undefined ? [] : [`from outside; pods and node: ${listText(endpoints)}`]),
    ...limits,
    ...(balance === undefined ? [] : [balance]),
    ...(affinitySeconds === undefined ? [] : [`sticky ${affinitySeconds}s`]),
  ])
}

function withNotes(text: string, notes: readonly string[]): string {
  return notes.length === 0 ? text : `${text} (${notes.join('; ')})`
}

function shortList(items: readonly string[], count: number): string {
  const shown = items.slice(0, count).join(', ')
  return items.length <= count ? shown : `${shown} +${items.length - count} more`
}

/** Lists the node addresses that answer on node ports, in one line for people. */
export function nodePortText(table: FrontendTable): string {
  return FAMILIES.map(family => {
    const addresses = table.nodePorts[family]
    return addresses.kind === 'all' ? `${family} all` : addresses.ips.map(formatIp).join(', ')
  })
    .filter(text => text !== '')
    .join(', ')
}
