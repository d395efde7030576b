import type { AttributeWriter } from '../../netlink/attribute.ts'
import { NLA_F_NESTED } from '../../netlink/constants.ts'
import type { CompiledRule } from './compiled-rule.ts'
import * as nft from './constants.ts'

const EXPRESSIONS = nft.NFTA_RULE_EXPRESSIONS | NLA_F_NESTED

/** Attributes of a rule whose expressions go out as they are. A full load has tens of thousands of them. */
export function writeCompiledRule(
  out: AttributeWriter,
  { table, chain, rule }: { readonly table: string; readonly chain: string; readonly rule: CompiledRule },
): void {
  out.string(nft.NFTA_RULE_TABLE, table)
  out.string(nft.NFTA_RULE_CHAIN, chain)
  out.octets(EXPRESSIONS, rule.compiled)
  if (rule.protocol === 0) return
  out.openNest(nft.NFTA_RULE_COMPAT)
  out.u32be(nft.NFTA_RULE_COMPAT_PROTO, rule.protocol)
  out.u32be(nft.NFTA_RULE_COMPAT_FLAGS, rule.protocolInverted ? nft.NFT_RULE_COMPAT_F_INV : 0)
  out.close()
}
