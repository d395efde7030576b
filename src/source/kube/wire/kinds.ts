import { printable } from '../../../model/fields.ts'
import type { ProtobufDecoder } from '../../../wire/protobuf/decoder.ts'
import type { MessageOf } from '../../../wire/protobuf/table.ts'
import { WireError } from '../../../wire/wire-error.ts'
import type { ApiKind, Message } from './reader.ts'
import { UNKNOWN } from './tables.ts'

/** apiVersions in which a kind has the fields that are read; the first is what objects without one get. */
const API_VERSIONS: Readonly<Record<ApiKind, readonly [string, ...string[]]>> = {
  Service: ['v1'],
  EndpointSlice: ['discovery.k8s.io/v1'],
  ServiceCIDR: ['networking.k8s.io/v1', 'networking.k8s.io/v1beta1'],
  Node: ['v1'],
}

/** What says of which type an object is; unchecked. */
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

/** The object itself, with the type that it should have where it says none: items of lists do not. */
export function withType(object: Message, kind: ApiKind, apiVersion = defaultVersion(kind)): Message {
  object.apiVersion ??= apiVersion
  object.kind ??= kind
  return object
}

/** What every body in protobuf begins with: `k8s` and a NUL; a runtime.Unknown follows. */
export const MAGIC: readonly number[] = [0x6b, 0x38, 0x73, 0]

export function hasMagic(bytes: Buffer, at = 0): boolean {
  return MAGIC.every((byte, index) => bytes[at + index] === byte)
}

/** An object in its envelope. */
interface Enveloped {
  readonly type: TypeMeta
  /** The object's own bytes. */
  readonly raw: Buffer
}

/** Throws WireError for anything but an object in protobuf. */
export function openEnvelope(decoder: ProtobufDecoder, bytes: Buffer): Enveloped {
  if (!hasMagic(bytes)) throw new WireError('protobuf without its first four bytes, k8s and NUL')
  const unknown = decoder.decode(UNKNOWN, { bytes, start: MAGIC.length, end: bytes.length })
  refuseEncodings(unknown)
  const { typeMeta = {}, raw = bytes.subarray(0, 0) } = unknown
  return { type: typeMeta, raw }
}

/** The API server leaves both empty; anything else is not what our tables read. */
export function refuseEncodings({ contentEncoding, contentType }: MessageOf<typeof UNKNOWN>): void {
  if (contentEncoding !== undefined)
    throw new WireError(`an object in the encoding ${printable(contentEncoding)}; none is expected`)
  if (contentType !== undefined)
    throw new WireError(`an object of the type ${printable(contentType)} within protobuf`)
}
