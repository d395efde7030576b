import { printable } from '../../../model/refusal.ts'
import type { Message } from './message.ts'
import { type ApiKind, WireError } from './reader.ts'

/** apiVersions in which a kind has the fields that are read; the first is what objects without one get. */
const API_VERSIONS: Readonly<Record<ApiKind, readonly [string, ...string[]]>> = {
  Service: ['v1'],
  EndpointSlice: ['discovery.k8s.io/v1'],
  ServiceCIDR: ['networking.k8s.io/v1', 'networking.k8s.io/v1beta1'],
  Node: ['v1'],
}

/** What says of which type an object is; unchecked. */
export interface TypeMeta {
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

/** The object itself, with the type that it should have where it says none: items of lists do not. */
export function withType(object: Message, kind: ApiKind, apiVersion = defaultVersion(kind)): Message {
  object.apiVersion ??= apiVersion
  object.kind ??= kind
  return object
}
