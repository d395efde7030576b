import { oneLine } from '../base/text.ts'
import type { ApiKind } from '../source/kube/wire/tables.ts'

export interface RelayedType {
  readonly kind: ApiKind
  /** The type URL of the API server's protobuf message. */
  readonly typeUrl: string
  readonly apiVersion: string
  /** Path of the collection at the API server. */
  readonly path: string
}

function relayed(kind: ApiKind, group: string, apiVersion: string, path: string): RelayedType {
  return { kind, typeUrl: `type.googleapis.com/k8s.io.api.${group}.v1.${kind}`, apiVersion, path }
}

export const RELAYED: Readonly<Record<ApiKind, RelayedType>> = {
  Service: relayed('Service', 'core', 'v1', '/api/v1/services'),
  EndpointSlice: relayed(
    'EndpointSlice',
    'discovery',
    'discovery.k8s.io/v1',
    '/apis/discovery.k8s.io/v1/endpointslices',
  ),
  Node: relayed('Node', 'core', 'v1', '/api/v1/nodes'),
  ServiceCIDR: relayed(
    'ServiceCIDR',
    'networking',
    'networking.k8s.io/v1',
    '/apis/networking.k8s.io/v1/servicecidrs',
  ),
}
/** The types that a node needs, in the order in which kprobe lists them. */
export const RELAYED_TYPES: readonly RelayedType[] = Object.values(RELAYED)

/** Method of incremental xDS. */
export const DELTA_METHOD = '/envoy.service.discovery.v3.AggregatedDiscoveryService/DeltaAggregatedResources'
export const HEALTH_METHOD = '/grpc.health.v1.Health/Check'

/** Method of KPNG's back ends. */
export const SETS_METHOD = '/localv1.Sets/Watch'

export const STATUS_METHOD = '/kprobe.relay.v1.Relay/Status'

/** Subscribes to every resource of a type. */
export const WILDCARD = '*'

/** Keys of the metadata by which a kprobe node resumes; other clients send none of them. */
export const METADATA = {
  /** The revision of the collection that the node holds. */
  revision: 'kprobe.io/revision',
  /** A reader without a revision to continue from holds this one: it takes no older state of a source that is not older. */
  atLeast: 'kprobe.io/at-least',
  /** The identity of the cluster that the revision belongs to; empty when it is unknown. */
  cluster: 'kprobe.io/cluster',
  /** The name of the proxy whose Services it wants; empty for the proxy without a name. */
  proxy: 'kprobe.io/service-proxy-name',
  /** The versions of these keys that the node reads, with commas between; PROTOCOL for a client that sends none. */
  protocol: 'kprobe.io/protocol',
  /** `fresh`: a relay whose source has been silent for long refuses. */
  age: 'kprobe.io/age',
  /** The report about the node's kernel: node-report.ts. */
  report: 'kprobe.io/report',
} as const

export const FRESH = 'fresh'
/** The version of the metadata that this relay, or node, speaks. */
export const PROTOCOL = '1'

/** Characters of a text of another program that a message contains. */
export const FOREIGN_TEXT_MAX = 200

export function shortLine(text: string): string {
  return oneLine(text.slice(0, FOREIGN_TEXT_MAX))
}
