import type { Octets } from '../../base/octets.ts'
import type { Rule } from './expression.ts'

/** A rule in the kernel's bytes: there are tens of thousands of iptables rules, and bytes are fast to compare. */
export interface CompiledRule {
  /**
   * The expressions as in NFTA_RULE_EXPRESSIONS, without that attribute's own header, in the order and form of the
   * kernel's listings; counters are zero.
   */
  readonly compiled: Octets
  /** NFTA_RULE_COMPAT_PROTO: the protocol of `-p`, for xtables; 0 for none. The kernel does not report it. */
  readonly protocol: number
  /** NFTA_RULE_COMPAT_FLAGS: NFT_RULE_COMPAT_F_INV for `! -p`. */
  readonly protocolInverted: boolean
}

export function isCompiled(rule: Rule | CompiledRule): rule is CompiledRule {
  return 'compiled' in rule
}
