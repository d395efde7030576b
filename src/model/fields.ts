import { joined } from '../base/collections.ts'
import {
  type Cidr,
  type Family,
  familyOf,
  type Ip,
  isBroadcast,
  isIpv4Mapped,
  isLinkLocal,
  isLoopback,
  isMulticast,
  isUnspecified,
  parseCidr,
  parseIp,
  whyNotCidr,
  whyNotIp,
} from '../base/ip.ts'

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

/** null and the empty string count as not given, as in Go's decoder and the API's defaults. */
export function isAbsent(value: unknown): value is undefined | null | '' {
  return value === undefined || value === null || value === ''
}

export function isPort(value: unknown): value is number {
  return typeof value === 'number' && Number.isInteger(value) && value >= 1 && value <= 65535
}

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
interface Identity extends Findings {
  readonly namespace: string
  readonly root: Json
  readonly metadata: Json
}

export function labelsOf({ metadata: { labels } }: Pick<Identity, 'metadata'>): Json {
  return isJson(labels) ? labels : ABSENT
}

/** Checks the names, or refuses the whole object: an object whose name cannot be printed cannot be reported. */
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

/**
 * A part of an object that cannot be honored. The smallest unit is refused (one address, one port, one range) and
 * everything else of the object still goes in.
 */
export interface Refusal {
  /** Kind, namespace and name: `Service ns1/web`, `EndpointSlice ns1/web-abc`. */
  readonly object: string
  /** Path of the refused field: `spec.externalIPs[1]`. */
  readonly field: string
  /** The refused value as it was given, escaped and shortened for one line of text. */
  readonly value: string
  /** States the cause and the accepted values, as a sentence without a full stop. */
  readonly reason: string
  /** The Service, `namespace/name`, whose EndpointSlice is refused as a whole; absent where none is known. */
  readonly service?: string
}

/** Shared by everything that is entirely accepted. */
export const NO_REFUSALS: readonly Refusal[] = []

/** Distinguishes the result of a parse function from its input: no object of the model has these fields. */
export function isRefusal(value: object): value is Refusal {
  return 'reason' in value && 'field' in value
}

/** Collects what is refused of one object while it is read. Nearly always that is nothing: no text is made before. */
export interface Findings {
  /** `Service`. */
  readonly kind: string
  /** `namespace/name`, or `name` of cluster-scoped kinds. */
  readonly key: string
  refusals: Refusal[] | undefined
}

export function refuse(findings: Findings, field: string, value: unknown, reason: string): void {
  addRefusal(findings, {
    object: objectText(findings.kind, findings.key),
    field,
    value: printable(value),
    reason,
  })
}

/** Refuses a value that must be a number. The message shows a quoted number with its quotes. */
export function refuseNumber(findings: Findings, field: string, value: unknown, reason: string): void {
  const isText = typeof value === 'string'
  addRefusal(findings, {
    object: objectText(findings.kind, findings.key),
    field,
    value: isText ? `"${printable(value)}"` : printable(value),
    reason: isText ? `a quoted string, and ${reason}` : reason,
  })
}

/** Adds a refusal, which may be about another object. */
export function addRefusal(findings: Findings, refusal: Refusal): void {
  if (findings.refusals === undefined) findings.refusals = [refusal]
  else findings.refusals.push(refusal)
}

export function refusalsOf(findings: Findings): readonly Refusal[] {
  return findings.refusals ?? NO_REFUSALS
}

/** `Service ns1/web`. */
export function objectText(kind: string, key: string): string {
  const slash = key.indexOf('/')
  const shown =
    slash < 0 ? printable(key) : `${printable(key.slice(0, slash))}/${printable(key.slice(slash + 1))}`
  return `${kind} ${shown}`
}

const LENGTH_MAX = 64
const ELLIPSIS = '...'

/** Text of any value, texts as they are. An object's own toString is not called: it is whatever a file made it. */
export function plainText(value: unknown): string {
  return typeof value === 'object' && value !== null ? printable(value) : String(value)
}

/**
 * An untrusted value as one line of printable ASCII, at most 64 characters: control characters, quotes, backslashes
 * and everything beyond ASCII (direction overrides among it) become \u escapes.
 */
export function printable(value: unknown): string {
  if (typeof value === 'string') return escaped(value)
  if (value === undefined) return 'nothing'
  if (Array.isArray(value)) return value.length === 0 ? '[]' : '[...]'
  if (typeof value === 'object' && value !== null) return '{...}'
  return escaped(String(value))
}

function escaped(text: string): string {
  let line = ''
  // One unit more than fits is enough to know that the text is too long.
  for (let at = 0; at < text.length && line.length <= LENGTH_MAX; at++)
    line += escapedUnit(text.charCodeAt(at))
  return line.length <= LENGTH_MAX ? line : line.slice(0, LENGTH_MAX - ELLIPSIS.length) + ELLIPSIS
}

function escapedUnit(unit: number): string {
  const isPlain =
    unit >= 0x20 && unit <= 0x7e && unit !== 0x22 && unit !== 0x27 && unit !== 0x5c && unit !== 0x60
  return isPlain ? String.fromCharCode(unit) : `\\u${unit.toString(16).padStart(4, '0')}`
}

/*
 * Names end up in kernel comments, log lines and map keys, so they are checked even though the API server has checked
 * them: files and other sources have not.
 */

// The engine compiles these at their second use; loops over characters are slow for the first thousands of objects.
const LABEL = /^[a-z0-9](?:[-a-z0-9]*[a-z0-9])?$/
const SUBDOMAIN = /^[a-z0-9](?:[-a-z0-9]*[a-z0-9])?(?:\.[a-z0-9](?:[-a-z0-9]*[a-z0-9])?)*$/

/** RFC 1123 label: 1 to 63 lower-case letters, digits and inner hyphens. */
export function isDnsLabel(text: string): boolean {
  return text.length <= 63 && LABEL.test(text)
}

/** RFC 1123 subdomain: labels joined by dots, 253 characters at most. */
export function isDnsSubdomain(text: string): boolean {
  return isDnsLabel(text) || (text.length <= 253 && SUBDOMAIN.test(text))
}

/**
 * Says why no Service may catch traffic to this address or send traffic to it, or undefined. Sources: CVE-2020-8554
 * (addresses that belong to the node or its cloud), CVE-2021-25736 (the empty address), CVE-2021-25740 (endpoints that
 * mean something else on every node), CVE-2021-29923 (text that two programs read differently).
 */
function dangerOf(ip: Ip): string | undefined {
  return isPlainV4(ip) ? undefined : dangerIn(ip)
}

/** Most addresses: what is dangerous in IPv4 shows in the first byte, 0, 127, 169 or 224 and above. */
function isPlainV4(ip: Ip): boolean {
  const first = ip.charCodeAt(0)
  return ip.length === 4 && first > 0 && first < 224 && first !== 127 && first !== 169
}

function dangerIn(ip: Ip): string | undefined {
  if (isUnspecified(ip)) return 'the unspecified address, which stands for every address'
  if (isLoopback(ip)) return 'a loopback address, which every node has for itself'
  if (isLinkLocal(ip))
    return 'a link-local address, which belongs to the network this node is on (or its cloud metadata)'
  if (isMulticast(ip)) return 'a multicast address; Services have unicast addresses'
  if (isBroadcast(ip)) return 'the broadcast address; Services have unicast addresses'
  if (isIpv4Mapped(ip))
    return 'an IPv4-mapped IPv6 address, which programs read as either family; write plain IPv4'
  return undefined
}

/** The address an untrusted value stands for, or undefined; whyNotAddress then gives the reason. */
export function readAddress(value: unknown, family?: Family): Ip | undefined {
  const ip = typeof value === 'string' ? parseIp(value) : undefined
  if (ip === undefined || dangerOf(ip) !== undefined) return undefined
  return family === undefined || familyOf(ip) === family ? ip : undefined
}

export function whyNotAddress(value: unknown, family?: Family): string {
  if (typeof value !== 'string') return 'not text; an IP address is a string'
  const ip = parseIp(value)
  if (ip === undefined) return whyNotIp(value)
  return dangerOf(ip) ?? `an ${familyOf(ip)} address where an ${family ?? 'IP'} one belongs`
}

/** The prefix an untrusted value stands for, or undefined; whyNotPrefix then gives the reason. */
export function readPrefix(value: unknown): Cidr | undefined {
  // Stored objects may carry spaces around ranges: the API server trims before it validates.
  const cidr = typeof value === 'string' ? parseCidr(value.trim()) : undefined
  return cidr === undefined || isMappedPrefix(cidr) ? undefined : cidr
}

export function whyNotPrefix(value: unknown): string {
  if (typeof value !== 'string') return 'not text; a CIDR is a string'
  const cidr = parseCidr(value.trim())
  if (cidr === undefined) return whyNotCidr(value.trim())
  return 'a prefix of IPv4-mapped IPv6 addresses, which programs read as either family; write plain IPv4'
}

function isMappedPrefix(cidr: Cidr): boolean {
  return cidr.bits >= 96 && isIpv4Mapped(cidr.ip)
}
