import { HEADLESS_LABEL } from '../../model/parse.ts'
import { PROXY_NAME_LABEL } from '../../model/parse-service.ts'
import type { ApiKind } from './wire/tables.ts'

/** A set of objects at the API server that is listed and watched as a whole. */
export interface Resource {
  /** Plural in lower case. */
  readonly name: string
  readonly kind: ApiKind
  /** The path from the server's root. */
  readonly path: string
  /** Empty for none. */
  readonly labelSelector: string
  readonly fieldSelector: string
  /** Old servers have no such thing, and some roles may not read it: the rest works without. */
  readonly optional: boolean
  /** Key of the one object that counts; undefined for all. */
  readonly only: string | undefined
}

interface WatchedOptions {
  readonly nodeName: string
  /** Only Services that ask for this proxy; undefined for those that ask for none. */
  readonly serviceProxyName: string | undefined
}

/**
 * What kube-proxy watches, with its selectors. A named proxy watches headless Services and their slices, too: their
 * external addresses are its own. EndpointSlices are not selected by proxy name: those made by hand need not bear the
 * label of their Service.
 */
export function watchedResources({ nodeName, serviceProxyName }: WatchedOptions): readonly Resource[] {
  const isNamed = serviceProxyName !== undefined
  return [
    {
      ...ALL,
      name: 'services',
      kind: 'Service',
      path: '/api/v1/services',
      labelSelector: isNamed ? `${PROXY_NAME_LABEL}=${serviceProxyName}` : `!${PROXY_NAME_LABEL}`,
      fieldSelector: isNamed ? '' : 'spec.clusterIP!=None',
    },
    {
      ...ALL,
      name: 'endpointslices',
      kind: 'EndpointSlice',
      path: '/apis/discovery.k8s.io/v1/endpointslices',
      labelSelector: isNamed ? '' : `!${HEADLESS_LABEL}`,
    },
    {
      ...ALL,
      name: 'nodes',
      kind: 'Node',
      path: '/api/v1/nodes',
      fieldSelector: `metadata.name=${nodeName}`,
      only: nodeName,
    },
    {
      ...ALL,
      name: 'servicecidrs',
      kind: 'ServiceCIDR',
      path: '/apis/networking.k8s.io/v1/servicecidrs',
      optional: true,
    },
  ]
}

const ALL = { labelSelector: '', fieldSelector: '', optional: false, only: undefined } as const

/** Path and query of a request for the resource: its selectors, then `query`. */
export function requestPath(resource: Resource, query: Readonly<Record<string, string>>): string {
  const { path, labelSelector, fieldSelector } = resource
  const all = { labelSelector, fieldSelector, ...query }
  const parts = Object.entries(all)
    .filter(([, value]) => value !== '')
    .map(([name, value]) => `${name}=${encodeURIComponent(value)}`)
  return parts.length === 0 ? path : `${path}?${parts.join('&')}`
}
