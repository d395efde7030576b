import type { Backend, Frontend, PortFrontends, Route, ServiceFrontends } from '../model/frontend.ts'

/** The back ends of one port of a Service in one family, or of its whole addresses. Both lists are sorted. */
interface PortUses {
  /** The same in each version of the Service. */
  readonly key: string
  /** The name of the service port; undefined behind whole addresses, which keep ports. */
  readonly name: string | undefined
  /** Back ends behind the ClusterIP. */
  readonly internal: readonly Backend[]
  /** Back ends behind every other address. */
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
