import { isJson, type Json, wholeRefusal } from './fields.ts'
import type { NamePool } from './names.ts'
import { parseNode, parseServiceCidr } from './parse-node.ts'
import { parseService } from './parse-service.ts'
import { isHeadlessSlice, parseEndpointSlice } from './parse-slice.ts'
import { isRefusal, plainText, printable, type Refusal } from './refusal.ts'
import type { SourceEvent } from './snapshot.ts'

/** The kinds of objects that are watched. */
export type WatchedKind = Exclude<SourceEvent['kind'], 'LocalIps'>

/**
 * Reads one whole object (with apiVersion and kind) of unknown origin. A Refusal means that nothing of it can be used:
 * an earlier version of it (see watchedIdentity) is then to be deleted. Undefined means a kind that nobody here watches.
 * An object that is watched but of no interest (a slice of a headless Service) gives the event that deletes it.
 */
export function parseObject(object: unknown, pool?: NamePool): SourceEvent | Refusal | undefined {
  const identity = watchedIdentity(object)
  if (identity === undefined)
    return isJson(object) ? undefined : wholeRefusal('object', '', object, 'not an object')
  const { kind, key } = identity
  if (!isJson(object) || !isReadVersion(kind, object.apiVersion)) return versionRefusal(identity, object)
  if (kind === 'EndpointSlice' && isHeadlessSlice(object)) return { kind, key, value: undefined }
  switch (kind) {
    case 'Service': {
      const value = parseService(object)
      return isRefusal(value) ? value : { kind, key, value }
    }
    case 'EndpointSlice': {
      const value = parseEndpointSlice(object, pool)
      return isRefusal(value) ? value : { kind, key, value }
    }
    case 'Node': {
      const value = parseNode(object)
      return isRefusal(value) ? value : { kind, key, value }
    }
    case 'ServiceCIDR': {
      const value = parseServiceCidr(object)
      return isRefusal(value) ? value : { kind, key, value }
    }
  }
}

export interface WatchedIdentity {
  readonly kind: WatchedKind
  /** As in SourceEvent; unchecked. */
  readonly key: string
}

/** Kind and key of an object of a watched kind, whatever else is wrong with it. */
export function watchedIdentity(object: unknown): WatchedIdentity | undefined {
  const kind = isJson(object) ? watchedKind(object) : undefined
  if (kind === undefined || !isJson(object)) return undefined
  const metadata = isJson(object.metadata) ? object.metadata : {}
  const name = plainText(metadata.name)
  const isScoped = kind === 'Service' || kind === 'EndpointSlice'
  return { kind, key: isScoped ? `${plainText(metadata.namespace ?? 'default')}/${name}` : name }
}

/** By kind and group: others have kinds called Service, too. */
function watchedKind(object: Json): WatchedKind | undefined {
  const { kind, apiVersion } = object
  if (typeof apiVersion !== 'string') return undefined
  const slash = apiVersion.indexOf('/')
  const group = slash < 0 ? '' : apiVersion.slice(0, slash)
  if ((kind === 'Service' || kind === 'Node') && group === '') return kind
  if (kind === 'EndpointSlice' && group === 'discovery.k8s.io') return kind
  return kind === 'ServiceCIDR' && group === 'networking.k8s.io' ? kind : undefined
}

/** EndpointSlices before v1 have other fields; ServiceCIDRs were the same in beta. */
function isReadVersion(kind: WatchedKind, apiVersion: unknown): boolean {
  if (kind === 'EndpointSlice') return apiVersion === 'discovery.k8s.io/v1'
  if (kind === 'ServiceCIDR')
    return apiVersion === 'networking.k8s.io/v1' || apiVersion === 'networking.k8s.io/v1beta1'
  return apiVersion === 'v1'
}

function versionRefusal(identity: WatchedIdentity, object: unknown): Refusal {
  const version = isJson(object) ? object.apiVersion : undefined
  const label = `${identity.kind} ${printable(identity.key)}`
  return wholeRefusal(label, 'apiVersion', version, 'not a version that is read; v1 is')
}
