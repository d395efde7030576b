import { joined } from '../base/compact.ts'
import { isDnsLabel, isDnsSubdomain } from './names.ts'
import { type Findings, plainText, printable, type Refusal, refuse } from './refusal.ts'

/** An object of unknown origin, as JSON.parse gives it. */
export type Json = Readonly<Record<string, unknown>>

const ABSENT: Json = {}
const EMPTY_LIST: readonly unknown[] = []

export function isJson(value: unknown): value is Json {
  return typeof value === 'object' && value !== null && !Array.isArray(value)
}

/** The object in a field that may be absent; anything but an object counts as absent and is refused. */
export function objectField(findings: Findings, value: unknown, field: string): Json {
  if (isJson(value)) return value
  if (value !== undefined && value !== null) refuse(findings, field, value, 'not an object; ignored')
  return ABSENT
}

export function listField(findings: Findings, value: unknown, field: string): readonly unknown[] {
  if (Array.isArray(value)) return value
  if (value !== undefined && value !== null) refuse(findings, field, value, 'not a list; ignored')
  return EMPTY_LIST
}

/** As Go's decoder and the API's defaults have it: null and the empty string count as not given. */
export function isAbsent(value: unknown): value is undefined | null | '' {
  return value === undefined || value === null || value === ''
}

export function isPort(value: unknown): value is number {
  return typeof value === 'number' && Number.isInteger(value) && value >= 1 && value <= 65535
}

/** The kinds of objects that are watched. */
export type WatchedKind = 'Service' | 'EndpointSlice' | 'Node' | 'ServiceCIDR'

/** An object, and its kind and names as they are written in it. Read once; whether they are valid shows `readIdentity`. */
export interface WatchedIdentity {
  readonly kind: WatchedKind
  /** The key as in SourceEvent. */
  readonly key: string
  readonly root: Readonly<Record<string, unknown>>
  readonly metadata: Readonly<Record<string, unknown>>
}

/** Reads the names of an object of this kind, whatever is wrong with it. */
export function identityOf(kind: WatchedKind, root: Json): WatchedIdentity {
  const metadata = isJson(root.metadata) ? root.metadata : ABSENT
  const name = plainText(metadata.name)
  // Manifests leave the namespace out where kubectl would fill in this one.
  const key = isScoped(kind) ? joined([plainText(metadata.namespace ?? DEFAULT), name], '/') : name
  return { kind, key, root, metadata }
}

const DEFAULT = 'default'

function isScoped(kind: WatchedKind): boolean {
  return kind === 'Service' || kind === 'EndpointSlice'
}

/** An object with valid names, and what is found wrong with it. */
export interface Identity extends Findings {
  readonly namespace: string
  readonly root: Json
  readonly metadata: Json
}

export function labelsOf({ metadata: { labels } }: Pick<Identity, 'metadata'>): Json {
  return isJson(labels) ? labels : ABSENT
}

/** Checks the names, or refuses the whole object: nothing can be said about one whose name cannot be printed. */
export function readIdentity({ kind, key, root, metadata }: WatchedIdentity): Identity | Refusal {
  const { name } = metadata
  const namespace = isScoped(kind) ? (metadata.namespace ?? DEFAULT) : ''
  const isPlaced = typeof namespace === 'string' && (!isScoped(kind) || isDnsLabel(namespace))
  const isNamed = typeof name === 'string' && (kind === 'Service' ? isDnsLabel(name) : isDnsSubdomain(name))
  if (isPlaced && isNamed) return { kind, key, refusals: undefined, namespace, root, metadata }
  const label = `${kind} ${isScoped(kind) ? `${printable(namespace)}/` : ''}${printable(name)}`
  if (!isPlaced) return wholeRefusal(label, 'metadata.namespace', namespace, NOT_A_LABEL)
  return wholeRefusal(label, 'metadata.name', name, kind === 'Service' ? NOT_A_LABEL : NOT_A_SUBDOMAIN)
}

/** Absent means TCP. */
export function protocolOf(value: unknown): 'TCP' | 'UDP' | 'SCTP' | undefined {
  if (value === 'TCP' || value === 'UDP' || value === 'SCTP') return value
  return isAbsent(value) ? 'TCP' : undefined
}

export const NOT_A_PROTOCOL = 'not a protocol of Services; TCP, UDP and SCTP are accepted'
export const NOT_A_PORT = 'not a port; whole numbers from 1 to 65535 are accepted'
export const NOT_A_LABEL =
  'not a DNS label; 1 to 63 lower-case letters, digits and inner hyphens are accepted'
const NOT_A_SUBDOMAIN = 'not a DNS subdomain; DNS labels joined by dots, 253 characters at most, are accepted'

export function wholeRefusal(object: string, field: string, value: unknown, reason: string): Refusal {
  return { object, field, value: printable(value), reason }
}
