import { WireError } from '../../../base/errors.ts'
import { printable } from '../../../model/fields.ts'
import {
  allEntries,
  bool,
  bytes,
  converted,
  entries,
  given,
  int32,
  int64,
  list,
  message,
  name,
  shared,
  type Table,
  table,
  text,
} from '../../../wire/protobuf/table.ts'

/*
 * What a list or a watch is once its bytes are read, in either encoding. Objects have the shape and the field
 * names of the API's JSON form, as parseObject of the model takes them; a reader of protobuf fills in only the fields
 * that kprobe uses, and sets apiVersion and kind on every object, which lists omit from their items.
 */

/** An object of the API in its JSON form; unchecked. */
export type ApiObject = { readonly [field: string]: unknown }

export interface ListReader {
  /** Calls onItem for each item that these bytes complete. Throws WireError. */
  push(bytes: Uint8Array): void
  /** The list's own metadata once the last byte was pushed. Throws WireError when the list is truncated. */
  end(): ListMeta
}

export interface ListMeta {
  readonly resourceVersion: string
  /** Token for the next page; empty on the last. */
  readonly continue: string
}

export interface WatchReader {
  /** The events that these bytes complete. Throws WireError. */
  push(bytes: Uint8Array): readonly WatchEvent[]
  /** Throws WireError when the stream ended within an event. */
  end(): void
}

export interface WatchEvent {
  /** ADDED, MODIFIED, DELETED, BOOKMARK, ERROR; others are the caller's to skip. */
  readonly type: string
  /** The object; a Status for ERROR. */
  readonly object: ApiObject
}

/** Kind of a reader's objects: which fields are read, and what apiVersion and kind items get. */
export type ApiKind = 'Service' | 'EndpointSlice' | 'ServiceCIDR' | 'Node'

export interface ReaderOptions {
  readonly kind: ApiKind
  /** Longest encoded form of one object, or of one event of a watch, bytes; more is a WireError. */
  readonly objectBytesMax: number
  /** Reads also the fields that only back ends get: all labels and annotations, target ports, hostnames. */
  readonly details?: boolean
  /** Gets each object with its own bytes, of protobuf alone; they are good until the next one. */
  readonly encoded?: ((object: ApiObject, bytes: Buffer) => void) | undefined
}

export interface ListReaderOptions extends ReaderOptions {
  readonly onItem: (object: ApiObject) => void
}

/** An object of the API while it is being read. */
export interface Message {
  [field: string]: unknown
}

export function isMessage(value: unknown): value is Message {
  return typeof value === 'object' && value !== null && !Array.isArray(value)
}

function textIn(value: unknown): string {
  return typeof value === 'string' ? value : ''
}

/**
 * Reads the list's own metadata. A list without a version, or whose continuation is not text,
 * may be a part of one: throws WireError.
 */
export function listMetaIn({ metadata }: Message): ListMeta {
  const { resourceVersion, continue: token } = isMessage(metadata) ? metadata : {}
  if (textIn(resourceVersion) === '') throw new WireError('a list without a resource version')
  if (token !== undefined && token !== null && typeof token !== 'string')
    throw new WireError('the continue token of the list is not a string')
  return { resourceVersion: textIn(resourceVersion), continue: textIn(token) }
}

/** apiVersions in which a kind has the fields that are read; the first is what objects without one get. */
const API_VERSIONS: Readonly<Record<ApiKind, readonly [string, ...string[]]>> = {
  Service: ['v1'],
  EndpointSlice: ['discovery.k8s.io/v1'],
  ServiceCIDR: ['networking.k8s.io/v1', 'networking.k8s.io/v1beta1'],
  Node: ['v1'],
}

interface TypeMeta {
  readonly apiVersion?: unknown
  readonly kind?: unknown
}

export function defaultVersion(kind: ApiKind): string {
  return API_VERSIONS[kind][0]
}

export function isOfKind(type: TypeMeta, kind: ApiKind): boolean {
  return type.kind === kind && API_VERSIONS[kind].some(version => version === type.apiVersion)
}

/** The apiVersion of a list's items. Throws WireError when it is not a list of this kind. */
export function versionOfList({ apiVersion, kind: listKind }: TypeMeta, kind: ApiKind): string {
  const version = API_VERSIONS[kind].find(version => version === apiVersion)
  if (version !== undefined && listKind === `${kind}List`) return version
  throw new WireError(
    `a body of kind ${printable(listKind)} in ${printable(apiVersion)} where a ${kind}List belongs`,
  )
}

/** Gives an object its expected type if it has none: items of lists have none. */
export function withType(object: Message, kind: ApiKind, apiVersion = defaultVersion(kind)): Message {
  object.apiVersion ??= apiVersion
  object.kind ??= kind
  return object
}

/*
 * The messages of the API, with the fields that kprobe uses. Numbers: generated.proto of k8s.io/api (core/v1,
 * discovery/v1, networking/v1) and of k8s.io/apimachinery (meta/v1, runtime), v0.36.
 */

/** A metav1.Time, which becomes RFC 3339 text; an empty one is none. */
const time = converted(table({ seconds: [1, int64] }), ({ seconds = 0 }) => {
  const text = rfc3339(seconds)
  if (text === undefined) throw new WireError(`a time ${seconds} seconds from 1970`)
  return text
})

/** An intstr.IntOrString, which becomes a number or a text; type 1 is the text. */
const intOrString = given(
  converted(
    table({ type: [1, int64], intVal: [2, int32], strVal: [3, text] }),
    ({ type, intVal = 0, strVal = '' }) => (type === 1 ? strVal : intVal),
  ),
)

const META_FIELDS = {
  name: [1, text],
  namespace: [3, name],
  uid: [5, text],
  resourceVersion: [6, text],
  creationTimestamp: [8, time],
  deletionTimestamp: [9, time],
} as const

const OBJECT_META = table({
  ...META_FIELDS,
  labels: [
    11,
    entries(
      'kubernetes.io/service-name',
      'service.kubernetes.io/headless',
      'service.kubernetes.io/service-proxy-name',
      'topology.kubernetes.io/zone',
    ),
  ],
  annotations: [
    12,
    entries(
      'endpoints.kubernetes.io/last-change-trigger-time',
      'k8s.io/initial-events-end',
      'kprobe.io/balance',
      'kprobe.io/fail-over',
      'kprobe.io/ipvs-scheduler',
      'kprobe.io/tcp-drain',
      'kprobe.io/weights',
    ),
  ],
})
const METADATA = [1, message(OBJECT_META)] as const

const LIST_META = table({ resourceVersion: [2, text], continue: [3, text] })

const PORT_FIELDS = {
  name: [1, name],
  protocol: [2, name],
  port: [3, given(int32)],
  nodePort: [5, int32],
} as const

const SPEC_FIELDS = {
  clusterIP: [3, text],
  type: [4, name],
  externalIPs: [5, list(text)],
  sessionAffinity: [7, name],
  loadBalancerSourceRanges: [9, list(text)],
  externalTrafficPolicy: [11, name],
  healthCheckNodePort: [12, int32],
  sessionAffinityConfig: [
    14,
    message(table({ clientIP: [1, message(table({ timeoutSeconds: [1, given(int32)] }))] })),
  ],
  clusterIPs: [18, list(text)],
  ipFamilies: [19, list(name)],
  internalTrafficPolicy: [22, given(name)],
} as const

const LOAD_BALANCER = table({
  ingress: [1, list(message(table({ ip: [1, text], ipMode: [3, given(name)] })))],
})

const SERVICE_STATUS = [3, message(table({ loadBalancer: [1, message(LOAD_BALANCER)] }))] as const

const SERVICE = table({
  metadata: METADATA,
  spec: [2, message(table({ ...SPEC_FIELDS, ports: [1, list(shared(table(PORT_FIELDS)))] }))],
  status: SERVICE_STATUS,
})

const HINT = table({ name: [1, given(name)] })

const ENDPOINT_FIELDS = {
  addresses: [1, list(text)],
  conditions: [
    2,
    shared(table({ ready: [1, given(bool)], serving: [2, given(bool)], terminating: [3, given(bool)] })),
  ],
  targetRef: [4, message(table({ kind: [1, given(name)], name: [3, text], uid: [4, text] }))],
  nodeName: [6, given(name)],
  zone: [7, given(name)],
  hints: [8, message(table({ forZones: [1, list(shared(HINT))], forNodes: [2, list(shared(HINT))] }))],
} as const

const SLICE_FIELDS = {
  metadata: METADATA,
  ports: [
    3,
    list(shared(table({ name: [1, given(name)], protocol: [2, given(name)], port: [3, given(int32)] }))),
  ],
  addressType: [4, name],
} as const

const ENDPOINT_SLICE = table({ ...SLICE_FIELDS, endpoints: [2, list(message(table(ENDPOINT_FIELDS)))] })

const NODE = table({
  metadata: METADATA,
  spec: [
    2,
    message(
      table({
        podCIDR: [1, text],
        taints: [5, list(message(table({ key: [1, name] })))],
        podCIDRs: [7, list(text)],
      }),
    ),
  ],
  status: [
    3,
    message(
      table({ addresses: [5, list(message(table({ type: [1, given(name)], address: [2, given(text)] })))] }),
    ),
  ],
})

const SERVICE_CIDR = table({
  metadata: METADATA,
  spec: [2, message(table({ cidrs: [1, list(text)] }))],
})

export const STATUS = table({
  metadata: [1, message(LIST_META)],
  status: [2, text],
  message: [3, text],
  reason: [4, text],
  details: [
    5,
    message(
      table({
        causes: [4, list(message(table({ reason: [1, text], message: [2, text] })))],
        retryAfterSeconds: [5, int32],
      }),
    ),
  ],
  code: [6, int32],
})

const OBJECTS: Readonly<Record<ApiKind, Table>> = {
  Service: SERVICE,
  EndpointSlice: ENDPOINT_SLICE,
  ServiceCIDR: SERVICE_CIDR,
  Node: NODE,
}

const DETAILED_PORT = table({ ...PORT_FIELDS, targetPort: [4, intOrString] })

const DETAILED_OBJECTS: Readonly<Record<ApiKind, Table>> = {
  ...OBJECTS,
  Service: table({
    metadata: [
      1,
      message(table({ ...META_FIELDS, labels: [11, allEntries], annotations: [12, allEntries] })),
    ],
    spec: [2, message(table({ ...SPEC_FIELDS, ports: [1, list(message(DETAILED_PORT))] }))],
    status: SERVICE_STATUS,
  }),
  EndpointSlice: table({
    ...SLICE_FIELDS,
    endpoints: [2, list(message(table({ ...ENDPOINT_FIELDS, hostname: [3, given(text)] })))],
  }),
}

export function tableFor({ kind, details = false }: ReaderOptions): Table {
  return details ? DETAILED_OBJECTS[kind] : OBJECTS[kind]
}

const TYPE_META = table({ apiVersion: [1, name], kind: [2, name] })

/** The envelope of every object is a runtime.Unknown. */
export const UNKNOWN_RAW = 2
export const UNKNOWN = table({
  typeMeta: [1, shared(TYPE_META)],
  raw: [UNKNOWN_RAW, bytes],
  contentEncoding: [3, text],
  contentType: [4, text],
})

export const WATCH_EVENT = table({
  type: [1, name],
  object: [2, message(table({ raw: [1, bytes] }))],
})

/** Every list, but for its items, which are read one by one. */
export const LIST = table({ metadata: [1, message(LIST_META)] })
export const LIST_ITEMS = 2

/** The years 0 to 9999, which RFC 3339 can write, in seconds from 1970. */
const FIRST_S = -62_167_219_200
const LAST_S = 253_402_300_799

/** A time as the API writes it, `2026-01-02T03:04:05Z`; undefined where RFC 3339 has no text. */
export function rfc3339(seconds: number): string | undefined {
  if (!(seconds >= FIRST_S && seconds <= LAST_S)) return undefined
  return new Date(seconds * 1000).toISOString().replace('.000Z', 'Z')
}
