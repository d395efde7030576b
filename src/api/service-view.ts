import type { Backend, Frontend, PortFrontends, Route, ServiceFrontends } from '../model/frontend.ts'
import { targetKey } from '../model/parse-service.ts'
import type { Service, ServicePortSpec, SliceList } from '../model/service.ts'

/** A Service as this node sees it: its object, what was resolved from it, and its slices. */
export interface ServiceView {
  readonly service: Service
  readonly frontends: ServiceFrontends
  readonly slices: SliceList
}

/** A number, or the name of a port that each pod has a number of its own for. */
export function targetOf(service: Service, { name, protocol, port }: ServicePortSpec): number | string {
  return service.details?.targetPorts[targetKey(name, protocol)] ?? port
}

/** Tests whether this node serves an address of the Service: nothing leads to it otherwise. */
export function isReached({ ports, wholes = [] }: ServiceFrontends): boolean {
  return ports.some(({ frontends }) => frontends.length > 0) || wholes.some(({ ips }) => ips.length > 0)
}

/** The back ends of one port of a Service in one family, or of its whole addresses. Both lists are sorted. */
interface PortUses {
  /** The key is the same in each version of the Service. */
  readonly key: string
  /** The name of the service port; undefined behind whole addresses, which keep ports. */
  readonly name: string | undefined
  /** Back ends behind the ClusterIP. */
  readonly internal: readonly Backend[]
  readonly external: readonly Backend[]
}

const NO_BACKENDS: readonly Backend[] = []

export function usesOf({ ports, wholes = [] }: ServiceFrontends): readonly PortUses[] {
  return [
    ...ports.map(usesOfPort),
    ...wholes.map(whole => ({
      key: whole.family,
      name: undefined,
      internal: NO_BACKENDS,
      external: backendsOf(whole.route, whole),
    })),
  ]
}

function usesOfPort(port: PortFrontends): PortUses {
  const isInternal = ({ kind }: Frontend) => kind === 'ClusterIP'
  const internal = port.frontends.find(isInternal)?.route
  const external = port.frontends.find(frontend => !isInternal(frontend))?.route
  return {
    key: port.key,
    name: port.displayName.slice(port.service.length + 1),
    internal: backendsOf(internal, port),
    external: backendsOf(external, port),
  }
}

function backendsOf(
  route: Route | undefined,
  lists: Pick<PortFrontends, 'cluster' | 'local'>,
): readonly Backend[] {
  switch (route?.kind) {
    case undefined:
    case 'reject':
    case 'drop':
      return NO_BACKENDS
    case 'internal':
      return route.over === 'local' ? lists.local : lists.cluster
    case 'external-cluster':
      return lists.cluster
    case 'external-local':
      return lists.local
  }
}
