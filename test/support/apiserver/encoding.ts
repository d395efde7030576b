import type { ApiObject } from '../../../src/source/kube/wire/tables.ts'
import { apiVersionOf, type Resource } from './resources.ts'
import { failure } from './status.ts'
import { metadataOf } from './store.ts'

export interface ListMetadata {
  readonly resourceVersion: string
  readonly continue?: string
  readonly remainingItemCount?: number
}

/** Objects to bytes, in one of the API's two encodings. */
export interface Encoder {
  readonly contentType: string
  readonly watchContentType: string
  /** Whether objects of this kind can be written. */
  has(kind: string): boolean
  list(resource: Resource, items: readonly ApiObject[], metadata: ListMetadata): Uint8Array
  object(object: ApiObject): Uint8Array
  /** With its framing. */
  event(type: string, object: ApiObject): Uint8Array
  status(status: ApiObject): Uint8Array
}

export interface Accepted {
  readonly encoder: Encoder
  /** Only metadata is wanted. */
  readonly partial: boolean
}

export const JSON_TYPE = 'application/json'
export const PROTOBUF_TYPE = 'application/vnd.kubernetes.protobuf'

/** The first media type of the Accept header that the server has for this kind. Throws ApiFailure 406. */
export function acceptedBy(accept: string, encoders: readonly Encoder[], kind = 'Status'): Accepted {
  const wanted = accept.trim() === '' ? ['*/*'] : accept.split(',')
  for (const each of wanted) {
    const [type = '', ...parameters] = each.split(';').map(part => part.trim().toLowerCase())
    const as = parameters.find(parameter => parameter.startsWith('as='))
    const partial = as?.startsWith('as=partialobjectmetadata') ?? false
    if (as !== undefined && !partial) continue
    const encoder = encoders.find(
      ({ contentType }) => contentType === type || /^(\*|application)\/\*$/.test(type),
    )
    if (encoder?.has(partial ? 'PartialObjectMetadata' : kind) === true) return { encoder, partial }
  }
  throw failure({ code: 406, reason: 'NotAcceptable', message: `none of the media types of "${accept}"` })
}

const PARTIAL = { kind: 'PartialObjectMetadata', apiVersion: 'meta.k8s.io/v1' } as const

export function partialOf(object: ApiObject): ApiObject {
  return { ...PARTIAL, metadata: metadataOf(object) }
}

/** Lists of metadata alone say so; their items do as well. */
export const PARTIAL_RESOURCE: Resource = {
  group: 'meta.k8s.io',
  version: 'v1',
  plural: '',
  kind: 'PartialObjectMetadata',
  namespaced: false,
}

/** JSON as the server writes it: items of lists do not name their kind. Each object is encoded once. */
export class JsonEncoder implements Encoder {
  readonly contentType = JSON_TYPE
  readonly watchContentType = JSON_TYPE

  has(): boolean {
    return true
  }

  readonly #bodies = new WeakMap<ApiObject, Buffer>()

  list(resource: Resource, items: readonly ApiObject[], metadata: ListMetadata): Uint8Array {
    const apiVersion = apiVersionOf(resource)
    const head = { kind: `${resource.kind}List`, apiVersion, metadata }
    const parts: Uint8Array[] = [Buffer.from(`${JSON.stringify(head).slice(0, -1)},"items":[`)]
    for (const item of items) {
      if (parts.length > 1) parts.push(COMMA)
      parts.push(this.#bodyOf(item))
    }
    parts.push(LIST_END)
    return Buffer.concat(parts)
  }

  object(object: ApiObject): Uint8Array {
    const body = this.#bodyOf(object)
    const { kind, apiVersion } = object
    if (kind === undefined) return body
    const head = JSON.stringify({ kind, apiVersion }).slice(0, -1)
    const rest = body.length === 2 ? body.subarray(1) : Buffer.concat([COMMA, body.subarray(1)])
    return Buffer.concat([Buffer.from(head), rest])
  }

  event(type: string, object: ApiObject): Uint8Array {
    const head = Buffer.from(`{"type":${JSON.stringify(type)},"object":`)
    return Buffer.concat([head, this.object(object), EVENT_END])
  }

  status(status: ApiObject): Uint8Array {
    return this.object(status)
  }

  /** Without kind and apiVersion. */
  #bodyOf(object: ApiObject): Buffer {
    let body = this.#bodies.get(object)
    if (body === undefined) {
      const { kind: _kind, apiVersion: _apiVersion, ...rest } = object
      body = Buffer.from(JSON.stringify(rest))
      this.#bodies.set(object, body)
    }
    return body
  }
}

const COMMA: Readonly<Buffer> = Buffer.from(',')
const LIST_END: Readonly<Buffer> = Buffer.from(']}')
const EVENT_END: Readonly<Buffer> = Buffer.from('}\n')
