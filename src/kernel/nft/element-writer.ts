import type { Octets } from '../../base/octets.ts'
import type { AttributeWriter } from '../../netlink/attribute.ts'
import type { Writer } from '../../netlink/flat-writer.ts'
import { type SourcesOf, writerOf } from '../../netlink/schema.ts'
import { NFTNL_UDATA_SET_ELEM_COMMENT } from './datatypes.ts'
import { LIST_ELEMENT, type SET_ELEMENT } from './schema.ts'
import type { Element, NftSet } from './state.ts'
import { commentUserdata } from './userdata.ts'

/**
 * Maximum length of an element: key and data 64 bytes each, a chain's name and userdata 256 each, and their headers.
 */
export const ELEMENT_BYTES_MAX = 768

type Sources<S> = SourcesOf<typeof SET_ELEMENT, S>

const KEY_AND_COMMENT: Sources<Element> = {
  key: { value: ({ key }) => key },
  userdata: ({ comment }) =>
    comment === '' ? undefined : commentUserdata(NFTNL_UDATA_SET_ELEM_COMMENT, comment),
}
const VALUE: Sources<Element> = {
  ...KEY_AND_COMMENT,
  data: { value: ({ data }) => (typeof data === 'string' ? data : undefined) },
}
const VERDICT: Sources<Element> = {
  ...KEY_AND_COMMENT,
  data: {
    verdict: {
      code: ({ data }) => (typeof data === 'object' ? data.code : undefined),
      chain: ({ data }) => (typeof data === 'object' ? data.chain : undefined),
    },
  },
}

/** Writers of one element of NFTA_SET_ELEM_LIST_ELEMENTS, by the kind of its data. */
const writeValue: Writer<Element> = writerOf(LIST_ELEMENT, { element: VALUE })
const writeVerdict: Writer<Element> = writerOf(LIST_ELEMENT, { element: VERDICT })

interface Expiring extends Element {
  readonly expiresMs: number
  /** The timeout of the element's set. */
  readonly timeoutMs: number
}
const writeExpiring: Writer<Expiring> = writerOf(LIST_ELEMENT, {
  element: {
    ...VALUE,
    // An expiration needs a timeout of at least its length: the set's, or otherwise one of the element's own.
    timeout: ({ expiresMs, timeoutMs }) => (expiresMs > timeoutMs ? BigInt(expiresMs) : undefined),
    expiration: ({ expiresMs }) => BigInt(expiresMs),
  },
})

/** Appends one element to NFTA_SET_ELEM_LIST_ELEMENTS. Throws NetlinkError for a value that does not fit. */
export function writeElement(out: AttributeWriter, { timeoutMs }: NftSet, element: Element): void {
  const { data, expiresMs = 0 } = element
  if (expiresMs > 0) writeExpiring(out, { ...element, expiresMs, timeoutMs })
  else if (typeof data === 'object') writeVerdict(out, element)
  else writeValue(out, element)
}

/** Appends the key of an element to delete. */
export const writeElementKey: Writer<Octets> = writerOf(LIST_ELEMENT, {
  element: { key: { value: key => key } },
})
