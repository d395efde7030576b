import {
  identityOf,
  isJson,
  type Json,
  type WatchedIdentity,
  type WatchedKind,
  wholeRefusal,
} from './fields.ts'
import type { NamePool } from './names.ts'
import { parseNode, parseServiceCidr } from './parse-node.ts'
import { parseService } from './parse-service.ts'
import { isHeadlessSlice, parseEndpointSlice } from './parse-slice.ts'
import { isRefusal, printable, type Refusal } from './refusal.ts'
import { readHostnames, readServiceDetails } from './service-details.ts'
import type { SourceEvent } from './snapshot.ts'

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
  if (identity !== undefined) return parseIdentified(identity, pool, options)
  return isJson(object) ? undefined : wholeRefusal('object', '', object, 'not an object')
}

/** The same, for an object whose identity was read already. */
export function parseIdentified(
  identity: WatchedIdentity,
  pool?: NamePool,
  { headlessSlices = false, details = false }: ParseOptions = {},
): SourceEvent | Refusal {
  const { kind, key, root } = identity
  if (!isReadVersion(kind, root.apiVersion)) {
    const reason = 'not a supported version; kprobe reads v1'
    return wholeRefusal(`${kind} ${printable(key)}`, 'apiVersion', root.apiVersion, reason)
  }
  switch (kind) {
    case 'Service': {
      const value = parseService(identity)
      if (isRefusal(value)) return value
      return { kind, key, value: details ? { ...value, details: readServiceDetails(root) } : value }
    }
    case 'EndpointSlice': {
      if (!headlessSlices && isHeadlessSlice(identity)) return { kind, key, value: undefined }
      const value = parseEndpointSlice(identity, pool)
      if (isRefusal(value)) return value
      const hostnames = details ? readHostnames(root) : undefined
      return { kind, key, value: hostnames === undefined ? value : { ...value, hostnames } }
    }
    case 'Node': {
      const value = parseNode(identity)
      return isRefusal(value) ? value : { kind, key, value }
    }
    case 'ServiceCIDR': {
      const value = parseServiceCidr(identity)
      return isRefusal(value) ? value : { kind, key, value }
    }
  }
}

/** Kind and key of an object of a watched kind, whatever else is wrong with it. */
export function watchedIdentity(object: unknown): WatchedIdentity | undefined {
  const kind = isJson(object) ? watchedKind(object) : undefined
  return isJson(object) && kind !== undefined ? identityOf(kind, object) : undefined
}

/** Finds the kind by kind and group: other groups also have a kind Service. */
function watchedKind({ kind, apiVersion }: Json): WatchedKind | undefined {
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
