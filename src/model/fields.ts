import { joined } from '../base/compact.ts'
import { isDnsLabel, isDnsSubdomain } from './names.ts'
import { type Findings, printable, type Refusal, refuse } from './refusal.ts'

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

/** Who an object is, and what is found wrong with it. */
export interface Identity extends Findings {
  readonly namespace: string
  readonly root: Json
  readonly metadata: Json
}

export function labelsOf(identity: Identity): Json {
  const { labels } = identity.metadata
  return isJson(labels) ? labels : ABSENT
}

export interface IdentityRules {
  readonly kind: string
  readonly scope: 'Namespaced' | 'Cluster'
  readonly name: 'label' | 'subdomain'
}

/** Reads metadata, or refuses the whole object: nothing can be said about one whose name cannot be printed. */
export function readIdentity(object: unknown, rules: IdentityRules): Identity | Refusal {
  const root = isJson(object) ? object : ABSENT
  const metadata = isJson(root.metadata) ? root.metadata : ABSENT
  const { name } = metadata
  const isScoped = rules.scope === 'Namespaced'
  // Manifests leave the namespace out where kubectl would fill in this one.
  const namespace = isScoped ? (metadata.namespace ?? 'default') : ''
  const isPlaced = typeof namespace === 'string' && (!isScoped || isDnsLabel(namespace))
  const isNamed =
    typeof name === 'string' && (rules.name === 'label' ? isDnsLabel(name) : isDnsSubdomain(name))
  if (!isPlaced || !isNamed || root === ABSENT) return identityRefusal(object, rules, namespace)
  return {
    kind: rules.kind,
    key: isScoped ? joined([namespace, name], '/') : name,
    refusals: undefined,
    namespace,
    root,
    metadata,
  }
}

function identityRefusal(object: unknown, rules: IdentityRules, namespace: unknown): Refusal {
  const metadata = isJson(object) && isJson(object.metadata) ? object.metadata : ABSENT
  const { name } = metadata
  const isScoped = rules.scope === 'Namespaced'
  const shown = isScoped ? `${printable(namespace)}/${printable(name)}` : printable(name)
  const label = `${rules.kind} ${shown}`
  if (!isJson(object)) return wholeRefusal(label, '', object, 'not an object')
  if (isScoped && !(typeof namespace === 'string' && isDnsLabel(namespace)))
    return wholeRefusal(label, 'metadata.namespace', namespace, NOT_A_LABEL)
  return wholeRefusal(label, 'metadata.name', name, rules.name === 'label' ? NOT_A_LABEL : NOT_A_SUBDOMAIN)
}

export const NOT_A_LABEL =
  'not a DNS label; 1 to 63 lower-case letters, digits and inner hyphens are accepted'
const NOT_A_SUBDOMAIN = 'not a DNS subdomain; DNS labels joined by dots, 253 characters at most, are accepted'

export function wholeRefusal(object: string, field: string, value: unknown, reason: string): Refusal {
  return { object, field, value: printable(value), reason }
}
