import { isJson, type Json, wholeRefusal } from './fields.ts'
import type { NamePool } from './names.ts'
import { parseNode, parseServiceCidr } from './parse-node.ts'
import { parseService } from './parse-service.ts'
import { isHeadlessSlice, parseEndpointSlice } from './parse-slice.ts'
import { isRefusal, plainText, printable, type Refusal } from './refusal.ts'
import { readHostnames, readServiceDetails } from './service-details.ts'
import type { SourceEvent } from './snapshot.ts'

/** The kinds of objects that are watched. */
export type WatchedKind = Exclude<SourceEvent['kind'], 'LocalIps'>

export interface ParseOptions {
  /** Keep the slices of headless Services: a named proxy may serve these. */
  readonly headlessSlices?: boolean
  /** Keep the fields that only back ends get (ServiceDetails, hostnames). */
  readonly details?: boolean
}

/**
 * Reads one whole object (with apiVersion and kind) of unknown origin. A Refusal means that nothing of it can be used:
 * an earlier version of it (see watchedIdentity) is then to be deleted. Undefined means a kind that kprobe does not watch.
 * An object that is watched but of no interest (a slice of a headless Service) gives the event that deletes it.
 */
export function parseObject(
  object: unknown,
  pool?: NamePool,
  options: ParseOptions = {},
): SourceEvent | Refusal | undefined {
  const identity = watchedIdentity(object)
  if (identity !== undefined) return parseIdentified(identity, object, pool, options)
  return isJson(object) ? undefined : wholeRefusal('object', '', object, 'not an object')
}

/** The same, for an object whose identity was read already. */
export function parseIdentified(
  { kind, key }: WatchedIdentity,
  object: unknown,
  pool?: NamePool,
  { headlessSlices = false, details = false }: ParseOptions = {},
): SourceEvent | Refusal | undefined {
  if (!isJson(object)) return undefined
  if (!isReadVersion(kind, object.apiVersion))
    return wholeRefusal(
      `${kind} ${printable(key)}`,
      'apiVersion',
      object.apiVersion,
      'not a supported version; kprobe reads v1',
    )
  switch (kind) {
    case 'Service': {
      const value = parseService(object)
      if (isRefusal(value)) return value
      return {
        kind,
        key: value.key,
        value: details ? { ...value, details: readServiceDetails(object) } : value,
      }
    }
    case 'EndpointSlice': {
      if (!headlessSlices && isHeadlessSlice(object)) return { kind, key, value: undefined }
      const value = parseEndpointSlice(object, pool)
      if (isRefusal(value)) return value
      const hostnames = details ? readHostnames(object) : undefined
      return { kind, key: value.key, value: hostnames === undefined ? value : { ...value, hostnames } }
    }
    case 'Node': {
      const value = parseNode(object)
      return isRefusal(value) ? value : { kind, key: value.name, value }
    }
    case 'ServiceCIDR': {
      const value = parseServiceCidr(object)
      return isRefusal(value) ? value : { kind, key, value }
    }
  }
}

export interface WatchedIdentity {
  readonly kind: WatchedKind
  /** The key as in SourceEvent; unchecked. */
  readonly key: string
}

/** Kind and key of an object of a watched kind, whatever else is wrong with it. */
export function watchedIdentity(object: unknown): WatchedIdentity | undefined {
  if (!isJson(object)) return undefined
  const kind = watchedKind(object)
  return kind === undefined ? undefined : { kind, key: keyOf(kind, object) }
}

function keyOf(kind: WatchedKind, object: Json): string {
  const metadata = isJson(object.metadata) ? object.metadata : {}
  const name = plainText(metadata.name)
  const isScoped = kind === 'Service' || kind === 'EndpointSlice'
  return isScoped ? `${plainText(metadata.namespace ?? 'default')}/${name}` : name
}

/** Finds the kind by kind and group: other groups also have a kind Service. */
function watchedKind(object: Json): WatchedKind | undefined {
  const { kind, apiVersion } = object
  if (typeof apiVersion !== 'string') return undefined
  switch (kind) {
    // Constants of ours, which compare by identity: not the text of the object.
    case 'Service':
      return apiVersion.indexOf('/') <= 0 ? 'Service' : undefined
    case 'EndpointSlice':
      return apiVersion.startsWith('discovery.k8s.io/') ? 'EndpointSlice' : undefined
    case 'Node':
      return apiVersion.indexOf('/') <= 0 ? 'Node' : undefined
    case 'ServiceCIDR':
      return apiVersion.startsWith('networking.k8s.io/') ? 'ServiceCIDR' : undefined
    default:
      return undefined
  }
}

/** EndpointSlices before v1 have other fields; ServiceCIDRs were the same in beta. */
function isReadVersion(kind: WatchedKind, apiVersion: unknown): boolean {
  if (kind === 'EndpointSlice') return apiVersion === 'discovery.k8s.io/v1'
  if (kind === 'ServiceCIDR')
    return apiVersion === 'networking.k8s.io/v1' || apiVersion === 'networking.k8s.io/v1beta1'
  return apiVersion === 'v1'
}
