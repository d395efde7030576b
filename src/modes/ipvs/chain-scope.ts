import type { Steps } from '../../base/steps.ts'
import type { IpsetClient } from '../../kernel/ipset/client.ts'
import type { NftClient } from '../../kernel/nft/client.ts'
import type { Observed } from '../../kernel/nft/state.ts'
import { compileRule } from '../../kernel/xt/compile.ts'
import type { Language } from '../../kernel/xt/language.ts'
import { printRule } from '../../kernel/xt/print.ts'
import { readRule } from '../../kernel/xt/read.ts'
import type { XtJump, XtTableName } from '../../kernel/xt/scope.ts'
import { ScopeDiff } from '../../kernel/xt/scope-diff.ts'
import type { HandleBook } from '../../kernel/xt/scope-handles.ts'
import { Committed, heldInKernel } from '../../kernel/xt/scope-held.ts'
import { chainKey, placeOfTable, type ScopeOperations } from '../../kernel/xt/scope-operation.ts'
import { commonOf, NOTHING_COMMON } from '../../kernel/xt/scope-wanted.ts'
import type { FrontendTable } from '../../model/frontend.ts'
import { detectorFor } from '../common/detector.ts'
import { LAYOUTS, NFT_FAMILIES } from '../common/family.ts'
import { isIpvsChain, KUBE_IPVS_FILTER, KUBE_LOAD_BALANCER } from '../xt-common/ipvs-chain-names.ts'
import { isOurChain, isServiceChain, KUBE_CHAINS, KUBE_PROXY_CANARY } from '../xt-common/layout.ts'
import { type ChainInputs, chainsOf, jumpsOf, SENT_ON } from './chains.ts'
import type { IpvsOptions, RuleWriter } from './settings.ts'
import type { Chains, IpvsState } from './state.ts'

/* Wants, observes and compares kube-proxy's chains of this mode in tables that other programs also use. */

const TABLES: readonly XtTableName[] = ['filter', 'nat']
const PLACES = NFT_FAMILIES.flatMap(family => TABLES.map(table => ({ family, table })))
const JUMPS = NFT_FAMILIES.flatMap(jumpsOf)

/** Makes the codec of rules about ipsets. Such rules contain set numbers, which are read from the kernel. */
export function languageOf(ipset: Pick<IpsetClient, 'indexOf' | 'nameOf'>): Language {
  return {
    compile: (rule, family) => compileRule(rule, family, name => ipset.indexOf(name)),
    nameOfIpset: index => ipset.nameOf(index),
  }
}

/** Gives the wanted chains; the object `before` when nothing changed. */
export function wantedChains(options: IpvsOptions, frontends: FrontendTable, before: Chains): Chains {
  const { rules, masqueradeAll, masqueradeBit } = options
  const inputs = NFT_FAMILIES.map((family): ChainInputs => {
    const detector = detectorFor(LAYOUTS[family].model, options, frontends.node)
    return { family, masqueradeAll, masqueradeMark: (1 << masqueradeBit) >>> 0, detector }
  })
  const key = rules === 'iptables' ? JSON.stringify(inputs) : ''
  if (before.kind === 'wanted' && before.key === key) return before
  const common = rules === 'iptables' ? commonOf(inputs.flatMap(chainsOf), JUMPS) : undefined
  return { kind: 'wanted', common, key }
}

interface ChainsSeen {
  readonly observed: Observed
  readonly generation: number
  readonly unsettled: boolean
}

/**
 * Reads the chains, and the chains that lead to them. When all rules are in our own tables, kube-proxy's
 * chains are not read, except leftovers of this program from the other rule writer.
 */
export async function observeChains(
  { nft, ipset }: { readonly nft: NftClient; readonly ipset: IpsetClient },
  rules: RuleWriter,
): Promise<ChainsSeen> {
  if (rules === 'nftables') {
    const mark = await nft.listChains(
      NFT_FAMILIES.map(family => ({ family, table: 'filter', chains: name => name === KUBE_IPVS_FILTER })),
    )
    if (!isOurs(mark.observed, ipset)) return { ...mark, observed: new Map() }
  }
  return await nft.listChains(
    PLACES.map(place => ({ ...place, chains: name => !isServiceChain(KUBE_CHAINS, place.table, name) })),
  )
}

/** Stores the observed chains with the kernel's rule numbers. */
export function learnChains(
  book: HandleBook,
  {
    state,
    generation,
    unsettled,
  }: { readonly state: IpvsState; readonly generation: number; readonly unsettled: boolean },
): void {
  book.forgetAll()
  if (unsettled || state.chains.kind !== 'observed') return
  book.reached(generation)
  for (const [table, { chains }] of state.chains.observed) {
    const place = placeOfTable(table)
    if (place === undefined) continue
    for (const { name, rules } of chains.values()) book.learn(chainKey(place, name), rules)
  }
}

/** Whether the chains contain a rule that kube-proxy does not write. */
function isOurs(observed: Observed, ipset: IpsetClient): boolean {
  const { nameOfIpset } = languageOf(ipset)
  return [...observed].some(([table, { chains }]) => {
    const place = placeOfTable(table)
    if (place === undefined) return false
    const text = printRule(SENT_ON, place.family)
    const rules = chains.get(KUBE_IPVS_FILTER)?.rules ?? []
    return rules.some(
      ({ compiled }) => printRule(readRule(compiled, place.family, nameOfIpset), place.family) === text,
    )
  })
}

/** Whether the chains that both modes have belong to an iptables mode, ours or kube-proxy's, that serves. */
function isIptablesMode(observed: Observed): boolean {
  return [...observed.values()].some(({ chains }) => {
    const rules = chains.get(KUBE_CHAINS.services)?.rules ?? []
    const leads = rules.some(({ compiled }) => compiled.includes(KUBE_LOAD_BALANCER))
    return chains.has(KUBE_PROXY_CANARY) && rules.length > 0 && !leads
  })
}

function isOnlyIpvs(table: XtTableName, name: string): boolean {
  return isIpvsChain(table, name) && !isOurChain(KUBE_CHAINS, table, name)
}

/** Whether a jump belongs to IPVS mode alone. Jumps that iptables mode has in the same form stay with it. */
function isOnlyOurs({ table, rule: { target } }: XtJump): boolean {
  const chain = target?.kind === 'jump' ? target.chain : ''
  return chain === KUBE_CHAINS.proxyFirewall || isOnlyIpvs(table, chain)
}

type ChainPhase = 'add-chains' | 'take-chains' | 'remove-chains'

/** Makes the operations that lead from one state to the other, with the phase that sends them. */
export function* diffChains(
  from: Chains,
  to: Chains,
  language: Language,
): Steps<{ readonly kind: ChainPhase; readonly operations: ScopeOperations }> {
  const common = to.kind === 'wanted' ? to.common : undefined
  const isShared = from.kind === 'observed' && isIptablesMode(from.observed)
  const kind = common === undefined ? 'remove-chains' : isShared ? 'take-chains' : 'add-chains'
  if (from.kind === 'wanted' && from.common === common) return { kind, operations: [] }
  const isPart = isShared && common === undefined
  const held =
    from.kind === 'observed'
      ? heldInKernel(from.observed, isPart ? JUMPS.filter(isOnlyOurs) : JUMPS)
      : new Committed(from.common ?? NOTHING_COMMON)
  const isOurs = isPart ? isOnlyIpvs : isIpvsChain
  const rules = { language, isOurs, keepsUsed: common === undefined }
  return { kind, operations: yield* new ScopeDiff(held, common ?? NOTHING_COMMON, rules).finish() }
}
