import type { AttributeWriter } from '../../netlink/attribute.ts'
import type { ByteWriter } from '../../netlink/bytes.ts'
import { NLA_F_NESTED, NLA_HDRLEN } from '../../netlink/constants.ts'
import { writeAttributes } from '../../netlink/schema.ts'
import type { CompiledRule } from './compiled-rule.ts'
import * as nft from './constants.ts'
import { RULE } from './schema.ts'

export interface PlacedCompiledRule {
  readonly table: string
  readonly chain: string
  readonly rule: CompiledRule
}

/** What the straight-line writer takes; whatever is longer goes through the tables, which know every limit. */
const NAME_LENGTH_MAX = 255
const COMPILED_LENGTH_MAX = 0xffff - NLA_HDRLEN
/** Of the headers, two names, their padding, and NFTA_RULE_COMPAT. */
const OVERHEAD = 2 * (NAME_LENGTH_MAX + 8) + 8 + 20

/** Attribute headers without their lengths, as words. */
const TABLE = nft.NFTA_RULE_TABLE << 16
const CHAIN = nft.NFTA_RULE_CHAIN << 16
const EXPRESSIONS = (nft.NFTA_RULE_EXPRESSIONS | NLA_F_NESTED) << 16
const COMPAT = ((nft.NFTA_RULE_COMPAT | NLA_F_NESTED) << 16) | 20
const COMPAT_PROTO = (nft.NFTA_RULE_COMPAT_PROTO << 16) | 8
const COMPAT_FLAGS = (nft.NFTA_RULE_COMPAT_FLAGS << 16) | 8

/**
 * Attributes of a rule whose expressions go out as they are. A full load has tens of thousands of them, and is written
 * in a straight line. A property test holds this against writeCompiledByTable.
 */
export function writeCompiledRule(out: AttributeWriter, placed: PlacedCompiledRule): void {
  if (!writeUsual(out.out, placed)) writeCompiledByTable(out, placed)
}

/** Adds nothing, and gives false, for what has unusual names or is too long. */
function writeUsual(out: ByteWriter, { table, chain, rule }: PlacedCompiledRule): boolean {
  const { compiled, protocol, protocolInverted } = rule
  const { length } = compiled
  const start = out.length
  if (length > COMPILED_LENGTH_MAX || protocol > 0xff) return false
  out.reserve(OVERHEAD + length)
  const chainAt = writeName(out, start, { header: TABLE, name: table })
  const at = chainAt === NOT_USUAL ? NOT_USUAL : writeName(out, chainAt, { header: CHAIN, name: chain })
  if (at === NOT_USUAL) return false
  out.words[at >> 2] = EXPRESSIONS | (NLA_HDRLEN + length)
  out.length = at + NLA_HDRLEN
  out.octets(compiled)
  out.align()
  if (protocol === 0) return true
  const { words, view } = out
  const compat = out.length >> 2
  words[compat] = COMPAT
  words[compat + 1] = COMPAT_PROTO
  words[compat + 3] = COMPAT_FLAGS
  view.setUint32((compat + 2) << 2, protocol)
  view.setUint32((compat + 4) << 2, protocolInverted ? nft.NFT_RULE_COMPAT_F_INV : 0)
  out.length += 20
  return true
}

const NOT_USUAL = -1

/** Gives the position after it, or NOT_USUAL: what is not ASCII, or has a NUL, is for the table. */
function writeName(
  out: ByteWriter,
  start: number,
  { header, name }: { readonly header: number; readonly name: string },
): number {
  const { length } = name
  if (length > NAME_LENGTH_MAX) return NOT_USUAL
  const { bytes } = out
  out.words[start >> 2] = header | (NLA_HDRLEN + length + 1)
  let at = start + NLA_HDRLEN
  for (let i = 0; i < length; i++) {
    const code = name.charCodeAt(i)
    if (code === 0 || code > 0x7f) return NOT_USUAL
    bytes[at++] = code
  }
  bytes[at++] = 0
  while ((at & 3) !== 0) bytes[at++] = 0
  return at
}

/** As writeCompiledRule, through the attribute table. */
export function writeCompiledByTable(out: AttributeWriter, { table, chain, rule }: PlacedCompiledRule): void {
  writeAttributes(out, RULE, { table, chain })
  out.octets(nft.NFTA_RULE_EXPRESSIONS | NLA_F_NESTED, rule.compiled)
  if (rule.protocol === 0) return
  const flags = rule.protocolInverted ? nft.NFT_RULE_COMPAT_F_INV : 0
  writeAttributes(out, RULE, { compat: { protocol: rule.protocol, flags } })
}
