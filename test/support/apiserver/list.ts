import type { ApiObject } from '../../../src/source/kube/wire/tables.ts'
import type { ListMetadata } from './encoding.ts'
import type { ListOptions } from './list-options.ts'
import type { Selector } from './selectors.ts'
import { badRequest, expired, tooLarge } from './status.ts'
import { keyOf, type View } from './store.ts'

export interface ListRequest {
  readonly plural: string
  /** Undefined for all. */
  readonly namespace: string | undefined
  readonly options: ListOptions
  readonly selector: Selector
  /** The answer from the watch cache keeps to the limit, too, which the real server's does not. */
  readonly limitAlways?: boolean
  /** Between two pages of something comes one of nothing. */
  readonly emptyPages?: boolean
}

interface ListPage {
  readonly items: readonly ApiObject[]
  readonly metadata: ListMetadata
}

/** Throws ApiFailure: 400, 410 when it is too old, 504 when it is too new. */
export function listPage(view: View, request: ListRequest): ListPage {
  const { plural, options, limitAlways = false, emptyPages = false } = request
  const { version, after, paused } = placeOf(view, options)
  if (emptyPages && after !== undefined && !paused) {
    const token = tokenOf({ version, after, paused: true })
    return { items: [], metadata: { resourceVersion: String(version), continue: token } }
  }
  const all = view.listAt(plural, version).filter(isWanted(request))
  const rest = after === undefined ? all : all.filter(object => keyOf(object) > after)
  const fromCache = options.resourceVersion === '0' && options.continue === ''
  const limit = fromCache && !limitAlways ? 0 : options.limit
  const resourceVersion = String(version)
  if (limit === 0 || rest.length <= limit) return { items: rest, metadata: { resourceVersion } }
  const items = rest.slice(0, limit)
  const last = items.at(-1)
  const token = tokenOf({ version, after: last === undefined ? '' : keyOf(last), paused: false })
  const counted = options.labelSelector === '' && options.fieldSelector === ''
  const remaining = counted ? { remainingItemCount: rest.length - limit } : {}
  return { items, metadata: { resourceVersion, continue: token, ...remaining } }
}

export function isWanted({ namespace, selector }: Pick<ListRequest, 'namespace' | 'selector'>): Selector {
  if (namespace === undefined) return selector
  const prefix = `${namespace}/`
  return object => keyOf(object).startsWith(prefix) && selector(object)
}

interface Place {
  readonly version: bigint
  readonly after: string | undefined
  readonly paused: boolean
}

function placeOf(view: View, options: ListOptions): Place {
  const { resourceVersion, match, limit } = options
  if (options.continue !== '') return continuedPlace(view, options)
  if (resourceVersion === '' || resourceVersion === '0')
    return { version: view.version, after: undefined, paused: false }
  const asked = BigInt(resourceVersion)
  if (asked > view.version) throw tooLarge(asked, view.version)
  const exact = match === 'Exact' || (match === undefined && limit > 0)
  if (!exact) return { version: view.version, after: undefined, paused: false }
  if (asked < view.compacted) throw expired(`resource version ${asked} is too old for a list`)
  return { version: asked, after: undefined, paused: false }
}

/** A token without a version goes on at the newest one, which is what an expired page offers. */
function continuedPlace(view: View, { continue: token, resourceVersion }: ListOptions): Place {
  if (resourceVersion !== '' && resourceVersion !== '0')
    throw badRequest('a resource version cannot be given together with continue')
  const { version, after, paused } = placeIn(token)
  if (version === undefined) return { version: view.version, after, paused }
  if (version < view.compacted)
    throw expired(
      'The continue parameter is too old for a consistent list: begin again, or go on inconsistently with the one given here.',
      tokenOf({ version: undefined, after, paused }),
    )
  return { version, after, paused }
}

interface Token {
  readonly version: bigint | undefined
  readonly after: string
  /** The page before it was the empty one. */
  readonly paused: boolean
}

function tokenOf({ version, after, paused }: Token): string {
  const text = JSON.stringify({
    v: 'meta.k8s.io/v1',
    rv: String(version ?? -1),
    start: `${after}\u0000`,
    paused,
  })
  return Buffer.from(text).toString('base64url')
}

function placeIn(token: string): Token {
  try {
    const { rv, start, paused } = JSON.parse(Buffer.from(token, 'base64url').toString())
    return {
      version: rv === '-1' ? undefined : BigInt(rv),
      after: String(start).slice(0, -1),
      paused: paused === true,
    }
  } catch (error) {
    throw badRequest(`continue key is not valid: ${error}`)
  }
}
