import type { ApiObject } from '../../../src/source/kube/wire/tables.ts'

/** Synthetic clusters as a real API server would show them: with what controllers and users leave on objects. */
export interface ClusterShape {
  readonly services: number
  readonly endpointsPerService: number
  readonly nodes?: number
  readonly namespaces?: number
  /** managedFields and annotations, which are half of an object's bytes; on by default. */
  readonly ballast?: boolean
}

const NODES = 100
const NAMESPACES = 50
/** As the controller cuts them. */
const SLICE_ENDPOINTS_MAX = 100
const WRITTEN = '2026-11-01T00:00:00Z'

export interface Placed {
  /** Plural. */
  readonly resource: string
  readonly object: ApiObject
}

/** Nodes, the service network, and then each Service with its slices. */
export function* clusterOf(shape: ClusterShape): IterableIterator<Placed> {
  for (let index = 0; index < (shape.nodes ?? NODES); index++)
    yield { resource: 'nodes', object: nodeOf(`node-${index}`, index) }
  yield { resource: 'servicecidrs', object: serviceCidrOf(['10.96.0.0/12']) }
  for (let index = 0; index < shape.services; index++) {
    yield { resource: 'services', object: serviceOf(index, shape) }
    for (const object of slicesOf(index, shape)) yield { resource: 'endpointslices', object }
  }
}

export function nodeOf(name: string, index: number): ApiObject {
  return {
    apiVersion: 'v1',
    kind: 'Node',
    metadata: {
      name,
      labels: {
        'kubernetes.io/hostname': name,
        'topology.kubernetes.io/region': 'region-1',
        'topology.kubernetes.io/zone': `zone-${index % 3}`,
      },
      annotations: { 'node.alpha.kubernetes.io/ttl': '0' },
    },
    spec: { podCIDR: podCidr(index), podCIDRs: [podCidr(index)] },
    status: {
      addresses: [
        { type: 'InternalIP', address: `172.16.${index >> 8}.${(index & 255) + 1}` },
        { type: 'Hostname', address: name },
      ],
      conditions: [{ type: 'Ready', status: 'True', reason: 'KubeletReady', message: 'ready' }],
    },
  }
}

export function serviceCidrOf(cidrs: readonly string[], name = 'kubernetes'): ApiObject {
  return {
    apiVersion: 'networking.k8s.io/v1',
    kind: 'ServiceCIDR',
    metadata: { name },
    spec: { cidrs },
    status: { conditions: [{ type: 'Ready', status: 'True' }] },
  }
}

interface ServiceExtra {
  readonly port?: number
  readonly type?: 'ClusterIP' | 'NodePort' | 'LoadBalancer'
  readonly annotations?: { readonly [key: string]: string }
  /** Where the address lies; by default that of the index. */
  readonly address?: number
}

/** Addresses run on from 10.96.0.1. */
export function serviceOf(
  index: number,
  { namespaces = NAMESPACES, ballast = true }: Omit<ClusterShape, 'services' | 'endpointsPerService'> = {},
  { port = 80, type = 'ClusterIP', annotations = {}, address = index }: ServiceExtra = {},
): ApiObject {
  const name = `service-${index}`
  const at = address + 1
  const clusterIP = `10.${96 + ((at >> 16) & 15)}.${(at >> 8) & 255}.${at & 255}`
  const nodePort = type === 'ClusterIP' ? {} : { nodePort: 30_000 + (index % 2_768) }
  return {
    apiVersion: 'v1',
    kind: 'Service',
    metadata: {
      namespace: `namespace-${index % namespaces}`,
      name,
      labels: { app: name, 'app.kubernetes.io/managed-by': 'Helm' },
      annotations: {
        ...annotations,
        ...(ballast ? { 'meta.helm.sh/release-name': `release-${index}` } : {}),
      },
      ...(ballast ? { managedFields: managedFields('helm', SERVICE_FIELDS) } : {}),
    },
    spec: {
      type,
      clusterIP,
      clusterIPs: [clusterIP],
      ipFamilies: ['IPv4'],
      ipFamilyPolicy: 'SingleStack',
      internalTrafficPolicy: 'Cluster',
      ...(type === 'ClusterIP' ? {} : { externalTrafficPolicy: 'Cluster' }),
      ports: [{ name: 'http', protocol: 'TCP', port, targetPort: 8080, ...nodePort }],
      selector: { app: name },
      sessionAffinity: 'None',
    },
    status: { loadBalancer: {} },
  }
}

export function slicesOf(index: number, shape: ClusterShape): readonly ApiObject[] {
  return Array.from({ length: sliceCountOf(shape) }, (_, number) =>
    sliceOf(index, { ...shape, number, pods: podsIn(index, number, shape) }),
  )
}

/** A Service without endpoints has an empty slice. */
export function sliceCountOf({ endpointsPerService }: ClusterShape): number {
  return Math.max(1, Math.ceil(endpointsPerService / SLICE_ENDPOINTS_MAX))
}

/** Pods of one slice of a Service, numbered on from Service to Service. */
export function podsIn(
  index: number,
  number: number,
  { endpointsPerService }: ClusterShape,
): readonly number[] {
  const first = number * SLICE_ENDPOINTS_MAX
  const length = Math.min(SLICE_ENDPOINTS_MAX, endpointsPerService - first)
  return Array.from({ length }, (_, slot) => index * endpointsPerService + first + slot)
}

interface SliceContent extends Omit<ClusterShape, 'services' | 'endpointsPerService'> {
  /** Of the slice among those of its Service. */
  readonly number: number
  readonly pods: readonly number[]
  /** Pods among them that are not ready. */
  readonly unready?: ReadonlySet<number>
  readonly port?: number
  /** For the annotation that latency is measured by. */
  readonly triggered?: string
}

export function sliceOf(index: number, content: SliceContent): ApiObject {
  const { namespaces = NAMESPACES, ballast = true, number, pods, unready, port = 8080 } = content
  const service = `service-${index}`
  return {
    apiVersion: 'discovery.k8s.io/v1',
    kind: 'EndpointSlice',
    metadata: {
      namespace: `namespace-${index % namespaces}`,
      name: `${service}-${number.toString(36).padStart(5, '0')}`,
      labels: {
        'kubernetes.io/service-name': service,
        'endpointslice.kubernetes.io/managed-by': 'endpointslice-controller.k8s.io',
      },
      annotations: { 'endpoints.kubernetes.io/last-change-trigger-time': content.triggered ?? WRITTEN },
      ownerReferences: [
        { apiVersion: 'v1', kind: 'Service', name: service, uid: `uid-${index}`, controller: true },
      ],
      ...(ballast ? { managedFields: managedFields('kube-controller-manager', SLICE_FIELDS) } : {}),
    },
    addressType: 'IPv4',
    ports: [{ name: 'http', protocol: 'TCP', port }],
    endpoints: pods.map(pod => endpointOf(pod, content.nodes ?? NODES, unready?.has(pod) !== true)),
  }
}

/** Pods live in 10.128.0.0/9. */
function endpointOf(pod: number, nodes: number, ready: boolean): object {
  return {
    addresses: [`10.${128 + ((pod >> 16) & 127)}.${(pod >> 8) & 255}.${pod & 255}`],
    conditions: { ready, serving: ready, terminating: false },
    nodeName: `node-${pod % nodes}`,
    zone: `zone-${(pod % nodes) % 3}`,
    targetRef: { kind: 'Pod', namespace: 'namespace', name: `pod-${pod}`, uid: `pod-uid-${pod}` },
  }
}

function podCidr(index: number): string {
  return `10.${128 + ((index >> 8) & 127)}.${index & 255}.0/24`
}

const SERVICE_FIELDS =
  'f:metadata f:annotations f:labels f:app f:spec f:internalTrafficPolicy f:ports f:protocol f:port f:targetPort f:selector f:sessionAffinity f:type'
const SLICE_FIELDS =
  'f:addressType f:endpoints f:metadata f:annotations f:generateName f:labels f:ownerReferences f:ports'

function managedFields(manager: string, fields: string): readonly object[] {
  const fieldsV1 = Object.fromEntries(fields.split(' ').map(field => [field, { '.': {} }]))
  return [{ manager, operation: 'Update', apiVersion: 'v1', time: WRITTEN, fieldsType: 'FieldsV1', fieldsV1 }]
}
