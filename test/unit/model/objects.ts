import { finish } from '../../../src/base/clock.ts'
import { formatCidr, formatIp, formatIpPort, type Ip } from '../../../src/base/ip.ts'
import { isRefusal, type Refusal } from '../../../src/model/fields.ts'
import type { Backend, FrontendTable, PortFrontends, ServiceFrontends } from '../../../src/model/frontend.ts'
import type { ResolveOptions } from '../../../src/model/node-context.ts'
import { type ParseOptions, parseObject } from '../../../src/model/parse.ts'
import { resolve } from '../../../src/model/resolve.ts'
import { applyEvents, EMPTY_SNAPSHOT, type Snapshot, type SourceEvent } from '../../../src/model/snapshot.ts'

export type Fields = Readonly<Record<string, unknown>>

/** A Service with one unnamed port 80/TCP at 10.96.0.1, unless told otherwise. */
export function service(
  name: string,
  spec: Fields = {},
  rest: { metadata?: Fields; status?: Fields } = {},
): Fields {
  return {
    apiVersion: 'v1',
    kind: 'Service',
    metadata: { namespace: 'ns', name, ...rest.metadata },
    spec: { clusterIP: '10.96.0.1', ports: [{ port: 80 }], ...spec },
    status: rest.status,
  }
}

/** An EndpointSlice with the port that `service` has, at 8080. */
export function slice(
  name: string,
  ofService: string,
  endpoints: readonly unknown[],
  rest: Fields = {},
): Fields {
  const { metadata, ...root } = rest
  return {
    apiVersion: 'discovery.k8s.io/v1',
    kind: 'EndpointSlice',
    metadata: {
      namespace: 'ns',
      name,
      labels: { 'kubernetes.io/service-name': ofService },
      ...(typeof metadata === 'object' ? metadata : {}),
    },
    addressType: 'IPv4',
    ports: [{ name: '', port: 8080 }],
    endpoints,
    ...root,
  }
}

export function endpoint(address: string, rest: Fields = {}): Fields {
  return { addresses: [address], conditions: { ready: true }, ...rest }
}

export const DRAINING = { ready: false, serving: true, terminating: true }
export const UNREADY = { ready: false, serving: false, terminating: false }

export function node(
  rest: { ips?: readonly string[]; zone?: string; podCIDRs?: readonly string[] } = {},
): Fields {
  return {
    apiVersion: 'v1',
    kind: 'Node',
    metadata: {
      name: 'here',
      labels: rest.zone === undefined ? {} : { 'topology.kubernetes.io/zone': rest.zone },
    },
    spec: { podCIDRs: rest.podCIDRs ?? [] },
    status: {
      addresses: (rest.ips ?? ['192.168.1.7', 'fd01::7']).map(address => ({ type: 'InternalIP', address })),
    },
  }
}

export function serviceCidr(name: string, cidrs: readonly string[], version = 'v1'): Fields {
  const apiVersion = `networking.k8s.io/${version}`
  return { apiVersion, kind: 'ServiceCIDR', metadata: { name }, spec: { cidrs } }
}

export const OPTIONS: ResolveOptions = {
  nodeName: 'here',
  serviceProxyName: undefined,
  nodePortSelection: { primary: false, cidrs: [] },
  allowedExternalCidrs: [],
  allowedLoadBalancerCidrs: [],
  allowServiceExternalIps: true,
  bindAddress: undefined,
}

export function eventsOf(objects: readonly unknown[], options: ParseOptions = {}): SourceEvent[] {
  return objects.map(object => {
    const event = parseObject(object, undefined, options)
    if (event === undefined || isRefusal(event)) throw new Error(`no event: ${JSON.stringify(event)}`)
    return event
  })
}

export function snapshotOf(objects: readonly unknown[]): Snapshot {
  return applyEvents(EMPTY_SNAPSHOT, eventsOf(objects))
}

export function tableOf(objects: readonly unknown[], options: Partial<ResolveOptions> = {}): FrontendTable {
  return finish(resolve({ ...OPTIONS, ...options }, undefined, snapshotOf(objects))).table
}

export function backends(list: readonly Backend[]): string[] {
  return list.map(its => `${formatIpPort(its.ip, its.port)}${its.local ? ' local' : ''}`)
}

/** One line a frontend: `10.96.0.1:80 internal/cluster`, with source ranges behind. */
export function frontendLines(port: PortFrontends): string[] {
  return port.frontends.map(its => {
    const where = its.ip === undefined ? `*:${its.port}` : formatIpPort(its.ip, its.port)
    const route = its.route.kind === 'internal' ? `internal/${its.route.over}` : its.route.kind
    const from = its.sourceRanges === undefined ? '' : ` from ${its.sourceRanges.map(formatCidr).join(' ')}`
    return `${where} ${route}${from}`
  })
}

/** A Service of a table as text: port key → frontends and lists. */
export function shown(table: FrontendTable, key: string): Record<string, unknown> {
  const found = table.services.get(key)
  return Object.fromEntries((found?.ports ?? []).map(port => [port.key, portShown(port)]))
}

export function portShown(port: PortFrontends): { frontends: string[]; cluster: string[]; local: string[] } {
  return { frontends: frontendLines(port), cluster: backends(port.cluster), local: backends(port.local) }
}

/** The only port of a Service. */
export function onlyPort(table: FrontendTable, key = 'ns/web'): PortFrontends {
  const ports = table.services.get(key)?.ports ?? []
  const [port] = ports
  if (port === undefined || ports.length !== 1) throw new Error(`${key} has ${ports.length} ports`)
  return port
}

export function refusalLines(found: { readonly refusals: readonly Refusal[] } | undefined): string[] {
  return (found?.refusals ?? []).map(its => `${its.object}: ${its.field} = ${its.value}: ${its.reason}`)
}

/** Everything of a table that planes read, as plain data that compares. */
export function plain(table: FrontendTable): unknown {
  const services: Record<string, ServiceFrontends> = Object.fromEntries(table.services.entries())
  const localBackends = Object.fromEntries(table.localBackends.entries())
  const { nodePorts, serviceCidrs, node: where } = table
  return { services, localBackends, nodePorts, serviceCidrs, node: where }
}

export function texts(ips: readonly Ip[]): string[] {
  return ips.map(formatIp)
}
