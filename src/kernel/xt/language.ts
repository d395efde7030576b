import type { Octets } from '../../base/octets.ts'
import { NetlinkError } from '../../netlink/errors.ts'
import type { CompiledRule } from '../nft/compiled-rule.ts'
import type { NftFamily } from '../nft/state.ts'
import type { XtRule } from './rule.ts'

/**
 * Compiles a rule as compileRule does, with access to ipsets. Throws NetlinkError for a rule that the kernel cannot
 * hold.
 */
type CompileRule = (rule: XtRule, family: NftFamily) => CompiledRule

/** The functions that write and read rules. */
export interface Language {
  readonly compile: CompileRule
  readonly nameOfIpset?: (index: number) => string | undefined
}

/** Compiles a rule; undefined for a rule that the kernel cannot hold. */
export function bytesOf({ compile }: Language, rule: XtRule, family: NftFamily): Octets | undefined {
  try {
    return compile(rule, family).compiled
  } catch (error) {
    if (!(error instanceof NetlinkError)) throw error
    return undefined
  }
}
