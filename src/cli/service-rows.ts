import { formatCidr } from '../base/cidr.ts'
import { FAMILIES, type Family, formatIp, formatIpPort } from '../base/ip.ts'
import type { Backend, Frontend, FrontendTable, NodePortAddresses, PortFrontends } from '../model/frontend.ts'
import { tableText } from './table.ts'

/** One place at which traffic is caught, and what becomes of it: what people and `-o json` are shown. */
export interface ServiceRow {
  /** `namespace/name:port`. */
  readonly service: string
  readonly type: string
  readonly protocol: string
  /** `10.96.0.10:80`; `*:30080` for every address of the node. */
  readonly frontend: string
  /** `balance`, `relay` (in the mode userspace), `reject` or `drop`. */
  readonly action: string
  /** Where everybody's connections go, or nobody's but those below say otherwise. */
  readonly endpoints: readonly string[]
  /** With a Local policy: where connections from outside go, source address kept. */
  readonly localEndpoints?: readonly string[]
  /** Clients that may connect; absent when all may. */
  readonly allowedFrom?: readonly string[]
  readonly affinitySeconds?: number
  /** Where the daemon takes connections that it relays. */
  readonly listener?: string
  /** With a Local policy: where it takes those of pods and of the node. */
  readonly insideListener?: string
}

/** Sorted by Service, then in the order of its frontends. */
export function serviceRows(
  table: FrontendTable,
  keys: Iterable<string> = table.services.keys(),
): ServiceRow[] {
  const rows: ServiceRow[] = []
  for (const key of [...keys].sort()) {
    const service = table.services.get(key)
    if (service === undefined) continue
    for (const port of service.ports)
      for (const frontend of port.frontends)
        rows.push(...rowsOf(port, frontend, table.nodePorts[port.family]))
  }
  return rows
}

function rowsOf(port: PortFrontends, frontend: Frontend, nodePorts: NodePortAddresses): ServiceRow[] {
  return addressesOf(port.family, frontend, nodePorts).map(address => ({
    service: port.displayName,
    type: frontend.kind,
    protocol: port.protocol,
    frontend: address,
    ...routeOf(port, frontend),
    ...(frontend.sourceRanges === undefined ? {} : { allowedFrom: frontend.sourceRanges.map(formatCidr) }),
    ...(port.affinityTimeoutS === 0 ? {} : { affinitySeconds: port.affinityTimeoutS }),
  }))
}

function routeOf(
  port: PortFrontends,
  { route }: Frontend,
): Pick<ServiceRow, 'action' | 'endpoints' | 'localEndpoints'> {
  const cluster = port.cluster.map(backendText)
  const local = port.local.map(backendText)
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

function backendText({ ip, port }: Backend): string {
  return formatIpPort(ip, port)
}

function addressesOf(family: Family, frontend: Frontend, nodePorts: NodePortAddresses): string[] {
  if (frontend.ip !== undefined) return [formatIpPort(frontend.ip, frontend.port)]
  const everywhere = family === 'IPv4' ? '*' : '[*]'
  if (nodePorts.kind === 'all') return [`${everywhere}:${frontend.port}`]
  return nodePorts.ips.map(ip => formatIpPort(ip, frontend.port))
}

/** Endpoints named in a table; all of them are in JSON and YAML. */
const ENDPOINTS_SHOWN = 3

export function serviceTable(rows: readonly ServiceRow[], options: { readonly colour: boolean }): string {
  const cells = rows.map(row => [row.service, row.type, `${row.frontend}/${row.protocol}`, destination(row)])
  return tableText(['SERVICE', 'TYPE', 'FRONTEND', 'ENDPOINTS'], cells, options)
}

function destination(row: ServiceRow): string {
  if (row.listener !== undefined || row.insideListener !== undefined) return relayText(row)
  if (row.action !== 'balance') return `none: ${row.action}`
  const shown = row.localEndpoints ?? row.endpoints
  const notes = [
    ...(row.localEndpoints === undefined ? [] : [`from outside; pods and node: ${listText(row.endpoints)}`]),
    ...(row.allowedFrom === undefined ? [] : [`only from ${listText(row.allowedFrom)}`]),
    ...(row.affinitySeconds === undefined ? [] : [`sticky ${row.affinitySeconds}s`]),
  ]
  const list = shown.length === 0 ? 'none: drop' : listText(shown)
  return notes.length === 0 ? list : `${list} (${notes.join('; ')})`
}

function relayText({ action, listener, insideListener, allowedFrom }: ServiceRow): string {
  const notes = [
    ...(insideListener === undefined ? [] : [`from outside; pods and node: ${insideListener}`]),
    ...(allowedFrom === undefined ? [] : [`only from ${listText(allowedFrom)}`]),
  ]
  const text = listener === undefined ? `none: ${action}` : `relayed at ${listener}`
  return notes.length === 0 ? text : `${text} (${notes.join('; ')})`
}

function listText(items: readonly string[]): string {
  const shown = items.slice(0, ENDPOINTS_SHOWN).join(', ')
  return items.length <= ENDPOINTS_SHOWN ? shown : `${shown} +${items.length - ENDPOINTS_SHOWN} more`
}

/** Addresses of the node that NodePorts answer on, as one line for people. */
export function nodePortText(table: FrontendTable): string {
  return FAMILIES.map(family => {
    const addresses = table.nodePorts[family]
    return addresses.kind === 'all' ? `${family} all` : addresses.ips.map(formatIp).join(', ')
  })
    .filter(text => text !== '')
    .join(', ')
}
