import type { NftFamily } from '../../src/kernel/nft/state.ts'
import { compileRule } from '../../src/kernel/xt/compile.ts'
import { ZERO_COUNTER } from '../../src/kernel/xt/expressions.ts'
import type { XtRule } from '../../src/kernel/xt/rule.ts'

/**
 * Gives the bytes of the tool's rule in the order of ours: it compares the protocol first, and we the addresses, which
 * few packets get past in a list of Services.
 */
export function inOurOrder(
  bytes: string,
  { protocol, source, destination }: XtRule,
  family: NftFamily,
): string {
  const only = (part: Partial<XtRule>): string =>
    compileRule({ ...part, matches: [], target: undefined }, family).compiled.slice(0, -ZERO_COUNTER.length)
  const first = only({ ...(protocol && { protocol }) })
  const second = only({ ...(source && { source }), ...(destination && { destination }) })
  return bytes.replace(first + second, () => second + first)
}
