import type { Octets } from '../../base/octets.ts'
import type { ByteView } from '../../netlink/bytes.ts'
import { NLA_HDRLEN, NLA_TYPE_MASK } from '../../netlink/constants.ts'
import { malformed } from '../../netlink/errors.ts'
import { type Message, NFGENMSG_LENGTH } from '../../netlink/message.ts'
import * as nft from './constants.ts'

/* Parses NFT_MSG_NEWRULE by hand: a shared table has a hundred thousand rules, and kprobe needs only their bytes
   (docs/decisions/0001). A property test compares it with the attribute tables. */

/** Positions of the parts of a rule. One object serves a whole dump and is refilled for each rule. */
export class RuleSpans {
  tableStart = 0
  tableEnd = 0
  chainStart = 0
  chainEnd = 0
  handleAt = 0
  start = 0
  end = 0

  /** Locates the parts. Throws NetlinkError when the message is not a rule, or lacks its table, chain or handle. */
  walk({ data }: ByteView, message: Message): void {
    this.tableStart = this.chainStart = this.handleAt = this.start = this.end = 0
    const { end } = message
    for (let at = message.start + NFGENMSG_LENGTH; at < end; ) {
      const length = lengthAt(data, at, end)
      const payload = at + NLA_HDRLEN
      switch (typeAt(data, at)) {
        case nft.NFTA_RULE_TABLE:
          this.tableStart = payload
          this.tableEnd = at + length - 1
          break
        case nft.NFTA_RULE_CHAIN:
          this.chainStart = payload
          this.chainEnd = at + length - 1
          break
        case nft.NFTA_RULE_HANDLE:
          if (length === NLA_HDRLEN + 8) this.handleAt = payload
          break
        case nft.NFTA_RULE_EXPRESSIONS:
          this.start = payload
          this.end = at + length
      }
      at += (length + 3) & ~3
    }
    if (this.tableStart === 0 || this.chainStart === 0 || this.handleAt === 0)
      throw malformed('a rule without its table, chain or handle', message.start)
  }

  handle({ data }: ByteView): bigint {
    return data.getBigUint64(this.handleAt)
  }

  table({ bytes }: ByteView): string {
    return bytes.toString('utf8', this.tableStart, this.tableEnd)
  }

  chain({ bytes }: ByteView): string {
    return bytes.toString('utf8', this.chainStart, this.chainEnd)
  }

  isInChain({ bytes }: ByteView, name: string): boolean {
    const { chainStart, chainEnd } = this
    if (chainEnd - chainStart !== name.length) return false
    for (let i = 0; i < name.length; i++) if (bytes[chainStart + i] !== name.charCodeAt(i)) return false
    return true
  }

  /** Returns the sum of its counters. */
  packets({ data }: ByteView): bigint {
    let packets = 0n
    for (let at = nextCounter(data, this.start, this.end); at !== NONE; ) {
      const value = counterValue(data, at, nft.NFTA_COUNTER_PACKETS)
      if (value !== NONE) packets += data.getBigUint64(value)
      at = nextCounter(data, after(data, at), this.end)
    }
    return packets
  }

  /** Returns the expressions with counters at zero. Clears the counters in the buffer. */
  compiled({ data, bytes }: ByteView): Octets {
    for (let at = nextCounter(data, this.start, this.end); at !== NONE; ) {
      clear(data, counterValue(data, at, nft.NFTA_COUNTER_PACKETS))
      clear(data, counterValue(data, at, nft.NFTA_COUNTER_BYTES))
      at = nextCounter(data, after(data, at), this.end)
    }
    return bytes.toString('latin1', this.start, this.end)
  }
}

const NONE = -1

function lengthAt(data: DataView, at: number, end: number): number {
  if (end - at < NLA_HDRLEN) throw malformed(`${end - at} stray bytes after the attributes`, at)
  const length = data.getUint16(at, true)
  if (length < NLA_HDRLEN || length > end - at) throw malformed(`an attribute of ${length} bytes`, at)
  return length
}

function typeAt(data: DataView, at: number): number {
  return data.getUint16(at + 2, true) & NLA_TYPE_MASK
}

function after(data: DataView, at: number): number {
  return at + ((data.getUint16(at, true) + 3) & ~3)
}

/** `counter` and its NUL, as two words in host order. */
const COUN = 0x6e756f63
const TER = 0x00726574
const COUNTER_NAME_LENGTH = NLA_HDRLEN + 8

/** Returns the position of the next list element that is a counter. */
function nextCounter(data: DataView, from: number, end: number): number {
  for (let at = from; at < end; ) {
    const length = lengthAt(data, at, end)
    // The kernel writes the name first.
    const name = at + NLA_HDRLEN
    const isCounter =
      length >= NLA_HDRLEN + COUNTER_NAME_LENGTH &&
      data.getUint16(name, true) === COUNTER_NAME_LENGTH &&
      data.getUint32(name + NLA_HDRLEN, true) === COUN &&
      data.getUint32(name + NLA_HDRLEN + 4, true) === TER
    if (isCounter) return at
    at += (length + 3) & ~3
  }
  return NONE
}

/** Returns the position of the eight bytes of a counter's attribute. */
function counterValue(data: DataView, at: number, wanted: number): number {
  const end = at + data.getUint16(at, true)
  for (let outer = at + NLA_HDRLEN; outer < end; ) {
    const length = lengthAt(data, outer, end)
    if (typeAt(data, outer) === nft.NFTA_EXPR_DATA) {
      const last = outer + length
      for (let inner = outer + NLA_HDRLEN; inner < last; ) {
        const size = lengthAt(data, inner, last)
        if (typeAt(data, inner) === wanted && size === NLA_HDRLEN + 8) return inner + NLA_HDRLEN
        inner += (size + 3) & ~3
      }
    }
    outer += (length + 3) & ~3
  }
  return NONE
}

function clear(data: DataView, at: number): void {
  if (at === NONE) return
  data.setUint32(at, 0)
  data.setUint32(at + 4, 0)
}

/** Reads the handle of NFT_MSG_NEWRULE. Throws NetlinkError. */
export function handleIn(view: ByteView, message: Message): bigint {
  const spans = new RuleSpans()
  spans.walk(view, message)
  return spans.handle(view)
}
