import {
  boolean,
  bytes,
  type EncodeTable,
  integer,
  intOrString,
  jsonText,
  message,
  string,
  time,
  wrapped,
} from './encode-table.ts'

/*
 * Whole messages of the API, those fields included that no reader of ours looks at. Numbers and what Go has in each
 * field: generated.proto and types.go of k8s.io/api and k8s.io/apimachinery, v0.36.
 */

const OWNER_REFERENCE: EncodeTable = {
  kind: [1, string],
  name: [3, string],
  uid: [4, string],
  apiVersion: [5, string],
  controller: [6, boolean, 'pointer'],
  blockOwnerDeletion: [7, boolean, 'pointer'],
}

const MANAGED_FIELDS: EncodeTable = {
  manager: [1, string],
  operation: [2, string],
  apiVersion: [3, string],
  time: [4, time, 'pointer'],
  fieldsType: [6, string],
  fieldsV1: [7, wrapped(jsonText), 'pointer'],
  subresource: [8, string],
}

const OBJECT_META: EncodeTable = {
  name: [1, string],
  generateName: [2, string],
  namespace: [3, string],
  selfLink: [4, string],
  uid: [5, string],
  resourceVersion: [6, string],
  generation: [7, integer],
  creationTimestamp: [8, time],
  deletionTimestamp: [9, time, 'pointer'],
  deletionGracePeriodSeconds: [10, integer, 'pointer'],
  labels: [11, string, 'map'],
  annotations: [12, string, 'map'],
  ownerReferences: [13, message(OWNER_REFERENCE), 'list'],
  finalizers: [14, string, 'list'],
  managedFields: [17, message(MANAGED_FIELDS), 'list'],
}
const METADATA = [1, message(OBJECT_META)] as const

const CONDITION: EncodeTable = {
  type: [1, string],
  status: [2, string],
  observedGeneration: [3, integer],
  lastTransitionTime: [4, time],
  reason: [5, string],
  message: [6, string],
}

const SERVICE_PORT: EncodeTable = {
  name: [1, string],
  protocol: [2, string],
  port: [3, integer],
  targetPort: [4, intOrString],
  nodePort: [5, integer],
  appProtocol: [6, string, 'pointer'],
}

const SERVICE_SPEC: EncodeTable = {
  ports: [1, message(SERVICE_PORT), 'list'],
  selector: [2, string, 'map'],
  clusterIP: [3, string],
  type: [4, string],
  externalIPs: [5, string, 'list'],
  sessionAffinity: [7, string],
  loadBalancerIP: [8, string],
  loadBalancerSourceRanges: [9, string, 'list'],
  externalName: [10, string],
  externalTrafficPolicy: [11, string],
  healthCheckNodePort: [12, integer],
  publishNotReadyAddresses: [13, boolean],
  sessionAffinityConfig: [
    14,
    message({ clientIP: [1, message({ timeoutSeconds: [1, integer, 'pointer'] }), 'pointer'] }),
    'pointer',
  ],
  ipFamilyPolicy: [17, string, 'pointer'],
  clusterIPs: [18, string, 'list'],
  ipFamilies: [19, string, 'list'],
  allocateLoadBalancerNodePorts: [20, boolean, 'pointer'],
  loadBalancerClass: [21, string, 'pointer'],
  internalTrafficPolicy: [22, string, 'pointer'],
  trafficDistribution: [23, string, 'pointer'],
}

const PORT_STATUS: EncodeTable = {
  port: [1, integer],
  protocol: [2, string],
  error: [3, string, 'pointer'],
}

const INGRESS: EncodeTable = {
  ip: [1, string],
  hostname: [2, string],
  ipMode: [3, string, 'pointer'],
  ports: [4, message(PORT_STATUS), 'list'],
}

const SERVICE: EncodeTable = {
  metadata: METADATA,
  spec: [2, message(SERVICE_SPEC)],
  status: [
    3,
    message({
      loadBalancer: [1, message({ ingress: [1, message(INGRESS), 'list'] })],
      conditions: [2, message(CONDITION), 'list'],
    }),
  ],
}

const OBJECT_REFERENCE: EncodeTable = {
  kind: [1, string],
  namespace: [2, string],
  name: [3, string],
  uid: [4, string],
  apiVersion: [5, string],
  resourceVersion: [6, string],
  fieldPath: [7, string],
}

const NAMED: EncodeTable = { name: [1, string] }

const ENDPOINT: EncodeTable = {
  addresses: [1, string, 'list'],
  conditions: [
    2,
    message({
      ready: [1, boolean, 'pointer'],
      serving: [2, boolean, 'pointer'],
      terminating: [3, boolean, 'pointer'],
    }),
  ],
  hostname: [3, string, 'pointer'],
  targetRef: [4, message(OBJECT_REFERENCE), 'pointer'],
  deprecatedTopology: [5, string, 'map'],
  nodeName: [6, string, 'pointer'],
  zone: [7, string, 'pointer'],
  hints: [
    8,
    message({ forZones: [1, message(NAMED), 'list'], forNodes: [2, message(NAMED), 'list'] }),
    'pointer',
  ],
}

const ENDPOINT_PORT: EncodeTable = {
  name: [1, string, 'pointer'],
  protocol: [2, string, 'pointer'],
  port: [3, integer, 'pointer'],
  appProtocol: [4, string, 'pointer'],
}

const ENDPOINT_SLICE: EncodeTable = {
  metadata: METADATA,
  endpoints: [2, message(ENDPOINT), 'list'],
  ports: [3, message(ENDPOINT_PORT), 'list'],
  addressType: [4, string],
}

const SERVICE_CIDR: EncodeTable = {
  metadata: METADATA,
  spec: [2, message({ cidrs: [1, string, 'list'] })],
  status: [3, message({ conditions: [1, message(CONDITION), 'list'] })],
}

const TAINT: EncodeTable = {
  key: [1, string],
  value: [2, string],
  effect: [3, string],
  timeAdded: [4, time, 'pointer'],
}

const NODE_SPEC: EncodeTable = {
  podCIDR: [1, string],
  externalID: [2, string],
  providerID: [3, string],
  unschedulable: [4, boolean],
  taints: [5, message(TAINT), 'list'],
  podCIDRs: [7, string, 'list'],
}

const NODE_CONDITION: EncodeTable = {
  type: [1, string],
  status: [2, string],
  lastHeartbeatTime: [3, time],
  lastTransitionTime: [4, time],
  reason: [5, string],
  message: [6, string],
}

const NODE_INFO: EncodeTable = {
  machineID: [1, string],
  systemUUID: [2, string],
  bootID: [3, string],
  kernelVersion: [4, string],
  osImage: [5, string],
  containerRuntimeVersion: [6, string],
  kubeletVersion: [7, string],
  kubeProxyVersion: [8, string],
  operatingSystem: [9, string],
  architecture: [10, string],
}

const NODE_STATUS: EncodeTable = {
  capacity: [1, wrapped(string), 'map'],
  allocatable: [2, wrapped(string), 'map'],
  phase: [3, string],
  conditions: [4, message(NODE_CONDITION), 'list'],
  addresses: [5, message({ type: [1, string], address: [2, string] }), 'list'],
  daemonEndpoints: [6, message({ kubeletEndpoint: [1, message({ Port: [1, integer] })] })],
  nodeInfo: [7, message(NODE_INFO)],
  images: [8, message({ names: [1, string, 'list'], sizeBytes: [2, integer] }), 'list'],
  volumesInUse: [9, string, 'list'],
}

const NODE: EncodeTable = {
  metadata: METADATA,
  spec: [2, message(NODE_SPEC)],
  status: [3, message(NODE_STATUS)],
}

const LIST_META: EncodeTable = {
  selfLink: [1, string],
  resourceVersion: [2, string],
  continue: [3, string],
  remainingItemCount: [4, integer, 'pointer'],
}

const STATUS_DETAILS: EncodeTable = {
  name: [1, string],
  group: [2, string],
  kind: [3, string],
  causes: [4, message({ reason: [1, string], message: [2, string], field: [3, string] }), 'list'],
  retryAfterSeconds: [5, integer],
  uid: [6, string],
}

const STATUS: EncodeTable = {
  metadata: [1, message(LIST_META)],
  status: [2, string],
  message: [3, string],
  reason: [4, string],
  details: [5, message(STATUS_DETAILS), 'pointer'],
  code: [6, integer],
}

export interface KindTable {
  readonly apiVersion: string
  readonly table: EncodeTable
}

export const KINDS: Readonly<Record<string, KindTable>> = {
  Service: { apiVersion: 'v1', table: SERVICE },
  EndpointSlice: { apiVersion: 'discovery.k8s.io/v1', table: ENDPOINT_SLICE },
  ServiceCIDR: { apiVersion: 'networking.k8s.io/v1', table: SERVICE_CIDR },
  Node: { apiVersion: 'v1', table: NODE },
  Status: { apiVersion: 'v1', table: STATUS },
}

export function listTable(item: EncodeTable): EncodeTable {
  return { metadata: [1, message(LIST_META)], items: [2, message(item), 'list'] }
}

export const UNKNOWN: EncodeTable = {
  typeMeta: [1, message({ apiVersion: [1, string], kind: [2, string] })],
  raw: [2, bytes],
  contentEncoding: [3, string],
  contentType: [4, string],
}

export const WATCH_EVENT: EncodeTable = {
  type: [1, string],
  object: [2, message({ raw: [1, bytes, 'pointer'] })],
}
