import type { Octets } from '../../base/octets.ts'
import type { Rule } from './expression.ts'

/** A rule as the kernel has it: for rules of iptables, which come by the ten thousand and are compared as bytes. */
export interface CompiledRule {
  /**
   * The expressions as in NFTA_RULE_EXPRESSIONS, without that attribute's own header, in the order and form in which the
   * kernel lists them; counters stand at zero.
   */
  readonly compiled: Octets
  /** NFTA_RULE_COMPAT_PROTO: what xtables asks of `-p`; 0 for none. The kernel does not give it back. */
  readonly protocol: number
  /** NFTA_RULE_COMPAT_FLAGS: NFT_RULE_COMPAT_F_INV for `! -p`. */
  readonly protocolInverted: boolean
}

export function isCompiled(rule: Rule | CompiledRule): rule is CompiledRule {
  return 'compiled' in rule
}
