import { WireError } from '../../../wire/wire-error.ts'
import type { ListMeta } from './reader.ts'

/** An object of the API while it is being read. */
export interface Message {
  [field: string]: unknown
}

export function isMessage(value: unknown): value is Message {
  return typeof value === 'object' && value !== null && !Array.isArray(value)
}

export function textIn(value: unknown): string {
  return typeof value === 'string' ? value : ''
}

/**
 * Reads the list's own metadata. A list that does not say its version, or says in another type than text where it goes on,
 * may be a part of one: throws WireError.
 */
export function listMetaIn({ metadata }: Message): ListMeta {
  const { resourceVersion, continue: token } = isMessage(metadata) ? metadata : {}
  if (textIn(resourceVersion) === '') throw new WireError('a list without a resource version')
  if (token !== undefined && token !== null && typeof token !== 'string')
    throw new WireError('the continue token of the list is not a string')
  return { resourceVersion: textIn(resourceVersion), continue: textIn(token) }
}
