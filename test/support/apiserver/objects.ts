import type { ApiObject } from '../../../src/source/kube/wire/tables.ts'
import { apiVersionOf, type Resource } from './resources.ts'
import { badRequest, failure, notFound } from './status.ts'
import { metadataOf, type Store } from './store.ts'

interface ObjectRequest {
  readonly method: string
  readonly resource: Resource
  readonly namespace: string | undefined
  readonly name: string | undefined
  readonly subresource: string | undefined
  readonly body: string
  readonly contentType: string
}

interface ObjectAnswer {
  readonly code: number
  readonly object: ApiObject
}

/** What clients of ours ask of one object: POST, GET and PATCH. Throws ApiFailure. */
export function answerObject(store: Store, request: ObjectRequest): ObjectAnswer {
  const { method, resource, name } = request
  if (request.subresource !== undefined && request.subresource !== 'status')
    throw failure({
      code: 404,
      reason: 'NotFound',
      message: 'the server could not find the requested resource',
    })
  if (method === 'POST' && name === undefined) return { code: 201, object: create(store, request) }
  const before = store.get(resource.plural, keyIn(request))
  if (name !== undefined && before === undefined) throw notFound(resource.plural, name)
  if (before !== undefined && method === 'GET') return { code: 200, object: before }
  if (before !== undefined && method === 'PATCH') return { code: 200, object: patch(store, request, before) }
  throw failure({ code: 405, reason: 'MethodNotAllowed', message: `${method} is not for ${resource.plural}` })
}

function keyIn({ resource, namespace, name = '' }: ObjectRequest): string {
  return resource.namespaced ? `${namespace ?? ''}/${name}` : name
}

function create(store: Store, request: ObjectRequest): ApiObject {
  const { resource, namespace } = request
  const object = bodyOf(request)
  const metadata = metadataOf(object)
  if (resource.namespaced && (namespace === undefined || (metadata.namespace ?? namespace) !== namespace))
    throw badRequest('the namespace of the object does not match that of the request')
  const place = resource.namespaced ? { namespace } : {}
  return store.create(resource.plural, { ...object, metadata: { ...metadata, ...place } })
}

/** With /status the status alone changes; without it all but the status. */
function patch(store: Store, request: ObjectRequest, before: ApiObject): ApiObject {
  const { resource, subresource, contentType, body } = request
  if (!/^application\/(strategic-)?merge-patch\+json/.test(contentType))
    throw failure({ code: 415, reason: 'UnsupportedMediaType', message: `cannot patch with ${contentType}` })
  const after = merged(before, parsed(body))
  if (!isRecord(after)) throw badRequest('the patch leaves no object')
  const { resourceVersion } = metadataOf(after)
  const next =
    subresource === 'status'
      ? { ...before, metadata: { ...metadataOf(before), resourceVersion }, status: after.status }
      : { ...after, ...(before.status === undefined ? {} : { status: before.status }) }
  return store.update(resource.plural, next)
}

function bodyOf({ body, resource }: ObjectRequest): ApiObject {
  const object = parsed(body)
  if (!isRecord(object)) throw badRequest('the body is not an object')
  const { kind = resource.kind, apiVersion = apiVersionOf(resource) } = object
  if (kind !== resource.kind || apiVersion !== apiVersionOf(resource))
    throw badRequest(`the body is ${apiVersion} ${kind}, not ${apiVersionOf(resource)} ${resource.kind}`)
  return { ...object, kind, apiVersion }
}

function parsed(body: string): unknown {
  try {
    return JSON.parse(body)
  } catch (error) {
    throw badRequest(`the body cannot be read: ${error}`)
  }
}

/** RFC 7396. */
function merged(target: unknown, patch: unknown): unknown {
  if (!isRecord(patch)) return patch
  const result: { [field: string]: unknown } = isRecord(target) ? { ...target } : {}
  for (const [field, value] of Object.entries(patch)) {
    if (value === null) delete result[field]
    else result[field] = merged(result[field], value)
  }
  return result
}

function isRecord(value: unknown): value is ApiObject {
  return typeof value === 'object' && value !== null && !Array.isArray(value)
}
