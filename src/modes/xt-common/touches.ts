import type { Touched } from '../../kernel/nft/monitor.ts'
import { readRule } from '../../kernel/xt/read.ts'
import { targetChain } from '../../kernel/xt/rule.ts'
import { chainKey, type IsOurs, placeOfTable, type XtPlace } from '../../kernel/xt/scope.ts'
import type { HandleCache } from '../../kernel/xt/scope-handles.ts'
import { type ChainNames, isOurChain } from './layout.ts'

/**
 * Returns whether a commit of another program concerns us: it changes our chains, rules of other chains that lead to them, or
 * whole tables. A notification names a deleted rule by its handle alone. If the handle is unknown, the rule may have
 * been ours.
 */
export function touchesUs(touched: Touched, handleCache: HandleCache, names: ChainNames): boolean {
  return touchesScope(
    touched,
    handleCache,
    (table, name) => name === names.firewall || isOurChain(names, table, name),
  )
}

/** Does the same for any set of chains that `isOursIn` defines. */
export function touchesScope(
  { family, table, chain, handle, targets }: Touched,
  handleCache: HandleCache,
  isOursIn: IsOurs,
): boolean {
  const place = placeOfTable(`${family} ${table}`)
  if (place === undefined) return false
  const isOurs = (name: string): boolean => isOursIn(place.table, name)
  if (chain === undefined || isOurs(chain) || targets().some(isOurs)) return true
  return handle !== undefined && mayHaveLed(handleCache, { place, chain, handle }, isOurs)
}

interface RuleGone {
  readonly place: XtPlace
  readonly chain: string
  readonly handle: bigint
}

function mayHaveLed(
  handleCache: HandleCache,
  { place, chain, handle }: RuleGone,
  isOurs: (chain: string) => boolean,
): boolean {
  const key = chainKey(place, chain)
  if (!handleCache.has(key)) return true
  for (const rule of handleCache.rulesOf(key)) {
    if (rule.handle !== handle) continue
    const target = targetChain(readRule(rule.compiled, place.family))
    return target !== undefined && isOurs(target)
  }
  return false
}
