import type { ApiRequest } from '../source/kube/api-client.ts'
import { RELAYED_TYPES, type RelayedType } from './types.ts'

/** A reflector's request to the API server. */
export interface Wanted {
  readonly type: RelayedType
  /** Undefined for all. */
  readonly name: string | undefined
  /** A `list` is one body; a `streamed-list` continues with changes; a `watch` begins at a revision. */
  readonly what: 'list' | 'streamed-list' | 'watch'
  readonly revision: string
  /** Undefined for as long as it lasts. */
  readonly seconds: number | undefined
}

/** Gives the list or watch that relays serve for a request; undefined for a request that they do not serve. */
export function wantedOf({ method, path, accept }: ApiRequest): Wanted | 'metadata' | undefined {
  const [collection, query = ''] = path.split('?')
  const type = RELAYED_TYPES.find(each => each.path === collection)
  if (method !== 'GET' || type === undefined) return undefined
  const options = new URLSearchParams(query)
  // Metadata of any Node is a few names for a log message.
  if (accept.includes('PartialObjectMetadata'))
    return type.kind === 'Node' && !options.has('fieldSelector') ? undefined : 'metadata'
  const name = /^metadata\.name=(.+)$/.exec(options.get('fieldSelector') ?? '')?.[1]
  const revision = options.get('resourceVersion') ?? ''
  const seconds = options.has('timeoutSeconds') ? Number(options.get('timeoutSeconds')) : undefined
  if (!options.has('watch')) return { type, name, what: 'list', revision: '', seconds: undefined }
  const isStreamed = options.get('sendInitialEvents') === 'true'
  return {
    type,
    name,
    what: isStreamed ? 'streamed-list' : 'watch',
    revision: isStreamed ? '' : revision,
    seconds,
  }
}
