import { printable } from '../../../model/refusal.ts'
import { WireError } from '../../../wire/wire-error.ts'

const PROTOBUF = 'application/vnd.kubernetes.protobuf'
const JSON_TYPE = 'application/json'

export type Encoding = 'protobuf' | 'json'

/** How a body of this Content-Type is read; parameters count for nothing. Throws WireError for any other type. */
export function encodingOf(contentType: string): Encoding {
  const encoding = knownEncoding(contentType)
  if (encoding !== undefined) return encoding
  throw new WireError(
    `the body has the content type ${printable(contentType) || '(none)'}; supported are ${PROTOBUF} and ${JSON_TYPE}`,
  )
}

function knownEncoding(contentType: string): Encoding | undefined {
  const type = (contentType.split(';')[0] ?? '').trim().toLowerCase()
  if (type === PROTOBUF) return 'protobuf'
  return type === JSON_TYPE ? 'json' : undefined
}

/**
 * The Accept header for configured content types (clientConnection.contentType, and .acceptContentTypes, which wins when
 * it is not empty). JSON is acceptable unless the latter leaves it out: servers of custom resources have nothing else.
 * What cannot be read, such as CBOR, is not asked for.
 */
export function acceptFor(contentType: string, acceptContentTypes = ''): string {
  const accepted = acceptContentTypes.split(',').filter(type => knownEncoding(type) !== undefined)
  if (accepted.length > 0) return accepted.map(type => type.trim()).join(', ')
  return contentType.trim().toLowerCase() === PROTOBUF ? `${PROTOBUF}, ${JSON_TYPE}` : JSON_TYPE
}
