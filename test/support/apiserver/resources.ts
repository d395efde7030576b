/** One resource the server has, by the names the API gives it. */
export interface Resource {
  /** Empty for the core group. */
  readonly group: string
  readonly version: string
  readonly plural: string
  readonly kind: string
  readonly namespaced: boolean
}

const CORE = { group: '', version: 'v1' } as const

export const RESOURCES: readonly Resource[] = [
  { ...CORE, plural: 'namespaces', kind: 'Namespace', namespaced: false },
  { ...CORE, plural: 'nodes', kind: 'Node', namespaced: false },
  { ...CORE, plural: 'services', kind: 'Service', namespaced: true },
  { ...CORE, plural: 'pods', kind: 'Pod', namespaced: true },
  { ...CORE, plural: 'configmaps', kind: 'ConfigMap', namespaced: true },
  {
    group: 'discovery.k8s.io',
    version: 'v1',
    plural: 'endpointslices',
    kind: 'EndpointSlice',
    namespaced: true,
  },
  {
    group: 'networking.k8s.io',
    version: 'v1',
    plural: 'servicecidrs',
    kind: 'ServiceCIDR',
    namespaced: false,
  },
  { group: 'events.k8s.io', version: 'v1', plural: 'events', kind: 'Event', namespaced: true },
]

export function apiVersionOf({ group, version }: Resource): string {
  return group === '' ? version : `${group}/${version}`
}

export function resourceOfKind(kind: unknown): Resource | undefined {
  return RESOURCES.find(resource => resource.kind === kind)
}

/** What a path asks for. */
export type Route =
  | { readonly kind: 'plain' }
  | {
      readonly kind: 'resource'
      readonly group: string
      readonly version: string
      readonly plural: string
      /** Undefined for all namespaces, and for what has none. */
      readonly namespace: string | undefined
      readonly name: string | undefined
      readonly subresource: string | undefined
    }

/** Reads `/api/v1/namespaces/ns/services/web/status` and its kin; what is no such path is plain. */
export function routeOf(path: string): Route {
  const [root, ...rest] = path.split('/').slice(1).map(decodeURIComponent)
  if (root === 'api' && rest.length >= 2) return inGroup('', rest)
  if (root === 'apis' && rest.length >= 3) return inGroup(rest[0] ?? '', rest.slice(1))
  return { kind: 'plain' }
}

function inGroup(group: string, [version = '', ...rest]: readonly string[]): Route {
  const scoped = rest[0] === 'namespaces' && rest.length >= 3
  const namespace = scoped ? rest[1] : undefined
  const [plural = '', name, subresource, ...more] = scoped ? rest.slice(2) : rest
  if (plural === '' || more.length > 0) return { kind: 'plain' }
  return { kind: 'resource', group, version, plural, namespace, name, subresource }
}
