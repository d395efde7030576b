import type { Octets } from '../../base/octets.ts'
import {
  NFT_CT_STATE,
  NFT_CT_STATUS,
  NFT_META_IIFNAME,
  NFT_META_L4PROTO,
  NFT_META_MARK,
  NFT_META_NFPROTO,
  NFT_META_OIFNAME,
  NFT_META_PRIORITY,
  NFT_PAYLOAD_NETWORK_HEADER,
  NFT_PAYLOAD_TRANSPORT_HEADER,
} from './constants.ts'
import {
  TYPE_CLASSID,
  TYPE_INET_PROTOCOL,
  TYPE_INET_SERVICE,
  TYPE_IP6ADDR,
  TYPE_IPADDR,
  TYPE_MARK,
} from './datatypes.ts'
import type { Expression } from './expression.ts'
import type { NftFamily } from './state.ts'

/** The content of a register in nft's words. */
export interface Source {
  readonly text: string
  /** Bytes. */
  readonly length: number
  /** nft's datatype, for the notation of constants; 0 for plain bytes. */
  readonly type: number
  /** Constants are numbers in host order, without leading zeros. */
  readonly isNumber?: boolean
  /** Constants are interface names, or with fewer bytes prefixes of names. */
  readonly isName?: boolean
  /** Masked values are printed as `value/bits`. */
  readonly prefixes?: boolean
  /** Set for the first bytes of a field of this length: a comparison compares a prefix. */
  readonly beginningOf?: number
  /** Set when a mask is the only change to the original. */
  readonly masked?: { readonly text: string; readonly mask: Octets }
}

interface Field {
  readonly base: number
  readonly offset: number
  readonly length: number
}

export function payloadSource(field: Field, family: NftFamily): Source {
  const { base, offset, length } = field
  const type = family === 'ip' ? TYPE_IPADDR : TYPE_IP6ADDR
  const address = ADDRESSES[family]
  if (base === NFT_PAYLOAD_NETWORK_HEADER && length <= address.length) {
    const beginningOf = length < address.length ? { beginningOf: address.length } : {}
    const of = { length, type, prefixes: true, ...beginningOf }
    if (offset === address.saddr) return { text: `${family} saddr`, ...of }
    if (offset === address.daddr) return { text: `${family} daddr`, ...of }
  }
  if (base === NFT_PAYLOAD_TRANSPORT_HEADER && length === 2) {
    if (offset === 0) return { text: 'th sport', length, type: TYPE_INET_SERVICE }
    if (offset === 2) return { text: 'th dport', length, type: TYPE_INET_SERVICE }
  }
  const header =
    base === NFT_PAYLOAD_NETWORK_HEADER ? 'nh' : base === NFT_PAYLOAD_TRANSPORT_HEADER ? 'th' : 'll'
  return { text: `@${header},${offset * 8},${length * 8}`, length, type: 0 }
}

/** Position of addresses in the network header. */
const ADDRESSES = {
  ip: { length: 4, saddr: 12, daddr: 16 },
  ip6: { length: 16, saddr: 8, daddr: 24 },
} as const

export function metaSource(key: number): Source {
  switch (key) {
    case NFT_META_MARK:
      return { text: 'meta mark', length: 4, type: TYPE_MARK }
    case NFT_META_PRIORITY:
      return { text: 'meta priority', length: 4, type: TYPE_CLASSID }
    case NFT_META_L4PROTO:
      return { text: 'meta l4proto', length: 1, type: TYPE_INET_PROTOCOL }
    case NFT_META_NFPROTO:
      return { text: 'meta nfproto', length: 1, type: 0 }
    case NFT_META_IIFNAME:
      return { text: 'iifname', length: 16, type: 0, isName: true }
    case NFT_META_OIFNAME:
      return { text: 'oifname', length: 16, type: 0, isName: true }
    default:
      return { text: `meta ${key}`, length: 4, type: 0 }
  }
}

export function numgenSource({ modulus, offset = 0 }: Extract<Expression, { kind: 'numgen' }>): Source {
  const text = `numgen random mod ${modulus}${offset === 0 ? '' : ` offset ${offset}`}`
  return { text, length: 4, type: 0 }
}

export function ctSource(key: number): Source {
  const name = key === NFT_CT_STATE ? 'state' : key === NFT_CT_STATUS ? 'status' : String(key)
  return { text: `ct ${name}`, length: 4, type: 0, isNumber: true }
}
