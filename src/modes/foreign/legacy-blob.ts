import type { NftFamily } from '../../kernel/nft/state.ts'

/** One chain of a table of legacy iptables, with the fields that identify its owner. */
export interface LegacyChain {
  readonly name: string
  readonly rules: number
}

/** Offsets of the fields of an entry: struct ipt_entry of ip_tables.h, struct ip6t_entry of ip6_tables.h. */
interface EntryLayout {
  readonly targetOffset: number
  readonly nextOffset: number
  readonly length: number
}

const ENTRIES: Readonly<Record<NftFamily, EntryLayout>> = {
  ip: { targetOffset: 88, nextOffset: 90, length: 112 },
  ip6: { targetOffset: 140, nextOffset: 142, length: 168 },
}

/** struct xt_entry_target: its size, the name of the target, a revision, and the target's own data. */
const TARGET_NAME = { offset: 2, length: 29 } as const
const TARGET_LENGTH = 32
/** XT_FUNCTION_MAXNAMELEN: a chain begins with a target ERROR that carries the chain's name. */
const CHAIN_NAME_LENGTH = 30
const ERROR = 'ERROR'

/**
 * Reads the user-defined chains of a table from the entries of IPT_SO_GET_ENTRIES. Each chain begins with a target
 * ERROR and ends with an implicit return. The last ERROR of a table starts no chain. Throws RangeError on a truncated
 * entry.
 */
export function chainsOfBlob(blob: DataView, family: NftFamily): readonly LegacyChain[] {
  const { targetOffset, nextOffset, length } = ENTRIES[family]
  const chains: { name: string; rules: number }[] = []
  let entries = 0
  for (let at = 0; at < blob.byteLength; ) {
    const target = at + blob.getUint16(at + targetOffset, true)
    const next = blob.getUint16(at + nextOffset, true)
    if (next < length) throw new RangeError(`an entry of ${next} bytes at ${at}`)
    if (textAt(blob, target + TARGET_NAME.offset, TARGET_NAME.length) === ERROR) {
      const open = chains.at(-1)
      if (open !== undefined) open.rules = entries - 1
      const name = textAt(blob, target + TARGET_LENGTH, CHAIN_NAME_LENGTH)
      if (at + next < blob.byteLength) chains.push({ name, rules: 0 })
      entries = 0
    } else entries++
    at += next
  }
  return chains
}

/** Reads text up to the first zero byte. */
function textAt(blob: DataView, offset: number, length: number): string {
  let text = ''
  for (let k = 0; k < length; k++) {
    const byte = blob.getUint8(offset + k)
    if (byte === 0) break
    text += String.fromCharCode(byte)
  }
  return text
}
