import * as fc from 'fast-check'
import type { ApiKind, ApiObject } from '../../../../../src/source/kube/wire/tables.ts'

/*
 * Objects of the API in the JSON form that Go gives them: a field with omitempty is not there when it is empty. Good
 * and bad values, and fields that nobody here reads.
 */

const LABELS = [
  'app',
  'kubernetes.io/service-name',
  'service.kubernetes.io/headless',
  'service.kubernetes.io/service-proxy-name',
  'topology.kubernetes.io/zone',
] as const
const ANNOTATIONS = [
  'note',
  'endpoints.kubernetes.io/last-change-trigger-time',
  'kprobe.io/ipvs-scheduler',
  'kprobe.io/tcp-drain',
  'k8s.io/initial-events-end',
] as const

const name = fc.constantFrom('web', 'web-1', 'a.b', 'Bad_Name', 'x'.repeat(64), 'ümlaut')
/** Mostly one with which the rest of the object is looked at. */
const usableName = fc.oneof(
  { weight: 9, arbitrary: fc.constantFrom('web', 'web-1') },
  { weight: 1, arbitrary: name },
)
const word = fc.oneof(
  name,
  fc.constantFrom('TCP', 'UDP', 'Local', 'Cluster', 'ClientIP', 'LoadBalancer', 'NodePort'),
  fc.constantFrom('IPv4', 'IPv6', 'VIP', 'Proxy', 'InternalIP', 'ExternalIP', '30s', '2026-01-02T03:04:05Z'),
  fc.string({ minLength: 1, unit: 'grapheme', maxLength: 80 }),
)
const address = fc.oneof(
  fc.ipV4(),
  fc.ipV6(),
  fc.constantFrom('', 'None', '10.0.0.0/8', 'fd00::/64', '127.0.0.1', '010.0.0.1', '::ffff:10.0.0.1'),
)
const number = fc.oneof(
  fc.integer({ min: 1, max: 65535 }),
  fc.integer({ min: -(2 ** 31), max: 2 ** 31 - 1 }),
  fc.constant(0),
)
const time = fc
  .date({ min: new Date('0001-01-01T00:00:01Z'), max: new Date('9999-12-31T23:59:59Z'), noInvalidDate: true })
  .map(date => `${date.toISOString().slice(0, 19)}Z`)

function some(fields: Readonly<Record<string, fc.Arbitrary<unknown>>>): fc.Arbitrary<object> {
  return fc.record(fields, { requiredKeys: [] })
}

function several<T>(of: fc.Arbitrary<T>): fc.Arbitrary<readonly T[]> {
  return fc.array(of, { minLength: 1, maxLength: 4 })
}

const managed = several(
  some({ manager: word, operation: word, time, fieldsV1: fc.constant({ 'f:spec': { 'f:ports': {} } }) }),
)

const metadata = fc.record(
  {
    name: usableName,
    namespace: usableName,
    uid: word,
    resourceVersion: fc.nat().map(String),
    generation: fc.integer({ min: 1, max: 2 ** 40 }),
    creationTimestamp: fc.oneof(time, fc.constant(null)),
    deletionTimestamp: time,
    labels: fc
      .tuple(usableName, fc.dictionary(fc.constantFrom(...LABELS), fc.oneof(word, fc.constant(''))))
      .map(([service, others]) => ({ 'kubernetes.io/service-name': service, ...others })),
    annotations: fc.dictionary(fc.constantFrom(...ANNOTATIONS), fc.oneof(word, fc.constant(''))),
    finalizers: several(word),
    managedFields: managed,
  },
  { requiredKeys: ['name', 'labels'] },
)

const servicePort = fc.record(
  {
    port: number,
    name,
    protocol: word,
    nodePort: number,
    targetPort: fc.oneof(number, word),
    appProtocol: word,
  },
  { requiredKeys: ['port', 'targetPort'] },
)

const service = some({
  spec: some({
    ports: several(servicePort),
    selector: fc.dictionary(name, word),
    clusterIP: address,
    clusterIPs: several(address),
    type: word,
    externalIPs: several(address),
    sessionAffinity: word,
    sessionAffinityConfig: some({ clientIP: some({ timeoutSeconds: number }) }),
    loadBalancerIP: address,
    loadBalancerSourceRanges: several(address),
    externalTrafficPolicy: word,
    internalTrafficPolicy: fc.oneof(word, fc.constant('')),
    healthCheckNodePort: number,
    publishNotReadyAddresses: fc.boolean(),
    ipFamilies: several(word),
    allocateLoadBalancerNodePorts: fc.boolean(),
  }),
  status: some({
    loadBalancer: some({
      ingress: several(some({ ip: address, hostname: word, ipMode: fc.oneof(word, fc.constant('')) })),
    }),
  }),
})

const hints = several(fc.record({ name: fc.oneof(name, fc.constant('')) }))
const endpoint = fc.record(
  {
    addresses: several(address),
    conditions: some({ ready: fc.boolean(), serving: fc.boolean(), terminating: fc.boolean() }),
    hostname: word,
    targetRef: some({ kind: word, name, uid: word }),
    deprecatedTopology: fc.dictionary(name, word),
    nodeName: fc.oneof(name, fc.constant('')),
    zone: word,
    hints: some({ forZones: hints, forNodes: hints }),
  },
  { requiredKeys: ['addresses', 'conditions'] },
)

const slice = some({
  addressType: fc.constantFrom('IPv4', 'IPv6', 'FQDN'),
  endpoints: several(endpoint),
  ports: several(
    some({ name: fc.oneof(name, fc.constant('')), protocol: word, port: number, appProtocol: word }),
  ),
})

const node = some({
  spec: some({
    podCIDR: address,
    podCIDRs: several(address),
    providerID: word,
    unschedulable: fc.boolean(),
    taints: several(
      fc.record({ key: fc.constantFrom('ToBeDeletedByClusterAutoscaler', 'other'), effect: word }),
    ),
  }),
  status: some({
    capacity: fc.dictionary(name, fc.constantFrom('2', '4Gi')),
    addresses: several(fc.record({ type: word, address })),
    images: several(fc.record({ names: several(word), sizeBytes: fc.integer({ min: 0, max: 2 ** 40 }) })),
  }),
})

const cidr = some({ spec: some({ cidrs: several(address) }) })

function typed(apiVersion: string, kind: ApiKind, fields: fc.Arbitrary<object>): fc.Arbitrary<ApiObject> {
  return fc.tuple(metadata, fields).map(([metadata, fields]) => ({ apiVersion, kind, metadata, ...fields }))
}

export const API_OBJECTS: Readonly<Record<ApiKind, fc.Arbitrary<ApiObject>>> = {
  Service: typed('v1', 'Service', service),
  EndpointSlice: typed('discovery.k8s.io/v1', 'EndpointSlice', slice),
  ServiceCIDR: typed('networking.k8s.io/v1', 'ServiceCIDR', cidr),
  Node: typed('v1', 'Node', node),
}

export const KINDS = ['Service', 'EndpointSlice', 'ServiceCIDR', 'Node'] as const

/** Lengths into which a body is cut, one after the other and over again. */
export const cuts = fc.array(fc.integer({ min: 1, max: 400 }), { minLength: 1, maxLength: 10 })

export function* pieces(bytes: Uint8Array, lengths: readonly number[]): Generator<Uint8Array> {
  for (let at = 0, index = 0; at < bytes.length; index++) {
    const length = lengths[index % lengths.length] ?? 1
    // A copy that is spoilt once it was taken: readers are to keep nothing of it.
    const piece = new Uint8Array(bytes.subarray(at, at + length))
    yield piece
    piece.fill(0xff)
    at += length
  }
}
