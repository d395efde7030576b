import { familyOf, formatIp, type Ip } from '../base/ip.ts'
import type { Steps } from '../base/steps.ts'
import type { Backend, Frontend, PortFrontends, Route } from '../model/frontend.ts'
import type { Service } from '../model/service.ts'
import type { SliceList } from '../model/slice-groups.ts'
import type { EndpointMessage, PortName } from './localv1.ts'
import { type ServiceView, targetOf } from './service-view.ts'

/** An address behind a Service, with all that its lists say about it. */
interface Draft {
  readonly local: boolean
  internal: boolean
  external: boolean
  /** By name of the Service's port: numbers, mostly one. */
  readonly ports: Map<string, Set<number>>
}

/** Endpoints between two offers to pause. */
const YIELD_EVERY = 2_000

/** Whom this node may send the Service's connections to, by key. */
export function* endpointsOfService(view: ServiceView): Steps<ReadonlyMap<string, EndpointMessage>> {
  const drafts = new Map<Ip, Draft>()
  for (const port of view.frontends.ports) yield* collect(drafts, usesOf(port), portName(port))
  for (const whole of view.frontends.wholes ?? []) {
    const external = backendsOf(whole.route, whole)
    yield* collect(drafts, { internal: NOBODY, external }, undefined)
  }
  const making: Making = { targets: targetsOf(view.service), scoped: isScoped(view.service) }
  const endpoints = new Map<string, EndpointMessage>()
  let count = 0
  for (const [ip, draft] of drafts) {
    const hostname = hostnameOf(view.slices, ip)
    for (const overrides of variantsOf(draft, making.targets)) {
      const key = `${formatIp(ip)}${overrides.map(({ Name = '', Port }) => `,${Name}=${Port}`).join('')}`
      endpoints.set(key, endpointMessage(making, draft, { ip, hostname, overrides }))
    }
    if (++count % YIELD_EVERY === 0) yield
  }
  return endpoints
}

interface Making {
  /** By name of the Service's port. */
  readonly targets: ReadonlyMap<string, number | string>
  /** A policy keeps some traffic on the node. */
  readonly scoped: boolean
}

interface Particulars {
  readonly ip: Ip
  readonly hostname: string | undefined
  readonly overrides: readonly PortName[]
}

function endpointMessage(making: Making, draft: Draft, its: Particulars): EndpointMessage {
  const { ip, hostname, overrides } = its
  const { local, internal, external } = draft
  const address = [formatIp(ip)]
  return {
    ...(hostname === undefined ? {} : { Hostname: hostname }),
    IPs: familyOf(ip) === 'IPv4' ? { V4: address } : { V6: address },
    ...(local ? { Local: true } : {}),
    ...(overrides.length === 0 ? {} : { PortOverrides: overrides }),
    ...(making.scoped
      ? { Scopes: { ...(internal ? { Internal: true } : {}), ...(external ? { External: true } : {}) } }
      : {}),
  }
}

function isScoped({ internalTrafficPolicy, externalTrafficPolicy }: Service): boolean {
  return internalTrafficPolicy === 'Local' || externalTrafficPolicy === 'Local'
}

function targetsOf(service: Service): ReadonlyMap<string, number | string> {
  return new Map(service.ports.map(port => [port.name, targetOf(service, port)]))
}

function portName({ displayName, service }: PortFrontends): string {
  return displayName.slice(service.length + 1)
}

interface Uses {
  /** Behind the ClusterIP. */
  readonly internal: readonly Backend[]
  /** Behind every other address. */
  readonly external: readonly Backend[]
}

const NOBODY: readonly Backend[] = []

function usesOf(port: PortFrontends): Uses {
  const isInternal = ({ kind }: Frontend) => kind === 'ClusterIP'
  const internal = port.frontends.find(isInternal)?.route
  const external = port.frontends.find(frontend => !isInternal(frontend))?.route
  return { internal: backendsOf(internal, port), external: backendsOf(external, port) }
}

type Lists = Pick<PortFrontends, 'cluster' | 'local'>

function backendsOf(route: Route | undefined, lists: Lists): readonly Backend[] {
  switch (route?.kind) {
    case undefined:
    case 'reject':
    case 'drop':
      return NOBODY
    case 'internal':
      return route.over === 'local' ? lists.local : lists.cluster
    case 'external-cluster':
      return lists.cluster
    case 'external-local':
      return lists.local
  }
}

function* collect(drafts: Map<Ip, Draft>, uses: Uses, name: string | undefined): Steps<void> {
  let count = 0
  for (const scope of ['internal', 'external'] as const) {
    for (const { ip, port, local } of uses[scope]) {
      const draft = drafts.get(ip) ?? { local, internal: false, external: false, ports: new Map() }
      drafts.set(ip, draft)
      draft[scope] = true
      if (name !== undefined) draft.ports.set(name, (draft.ports.get(name) ?? new Set()).add(port))
      if (++count % YIELD_EVERY === 0) yield
    }
  }
}

/**
 * The ports that are not the ones the Service names, once for each endpoint that has the address: pods in the network of
 * their node share it, and differ in nothing but their ports.
 */
function variantsOf({ ports }: Draft, targets: Making['targets']): readonly (readonly PortName[])[] {
  const lists = [...ports].map(([name, numbers]) => ({ name, numbers: [...numbers] }))
  const count = Math.max(1, ...lists.map(({ numbers }) => numbers.length))
  const variants: PortName[][] = []
  for (let index = 0; index < count; index++) {
    const overrides: PortName[] = []
    for (const { name, numbers } of lists) {
      const port = numbers[index] ?? numbers[0] ?? 0
      if (port !== targets.get(name))
        overrides.push(name === '' ? { Port: port } : { Name: name, Port: port })
    }
    variants.push(overrides)
  }
  return variants
}

function hostnameOf(slices: SliceList, ip: Ip): string | undefined {
  for (let index = 0; index < slices.length; index++) {
    const hostname = slices[index]?.hostnames?.[ip]
    if (hostname !== undefined) return hostname
  }
  return undefined
}
