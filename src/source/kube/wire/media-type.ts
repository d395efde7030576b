import { printable } from '../../../model/refusal.ts'
import { WireError } from './reader.ts'

const PROTOBUF = 'application/vnd.kubernetes.protobuf'
const JSON_TYPE = 'application/json'

export type Encoding = 'protobuf' | 'json'

/** How a body of this Content-Type is read; parameters count for nothing. Throws WireError for any other type. */
export function encodingOf(contentType: string): Encoding {
  const type = (contentType.split(';')[0] ?? '').trim().toLowerCase()
  if (type === PROTOBUF) return 'protobuf'
  if (type === JSON_TYPE) return 'json'
  throw new WireError(
    `a body of type ${printable(contentType) || 'nothing'}; ${PROTOBUF} and ${JSON_TYPE} are read`,
  )
}

/**
 * The Accept header for a configured content type (clientConnection.contentType). JSON is always acceptable: servers
 * of custom resources have nothing else. What cannot be read is not asked for.
 */
export function acceptFor(contentType: string): string {
  return contentType.trim().toLowerCase() === PROTOBUF ? `${PROTOBUF}, ${JSON_TYPE}` : JSON_TYPE
}
