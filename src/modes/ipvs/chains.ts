import type { IpsetClient } from '../../kernel/ipset/client.ts'
import type { NftClient, ReadOptions } from '../../kernel/nft/client.ts'
import type { NftFamily, Observed } from '../../kernel/nft/state.ts'
import { compileRule, type RuleCodec } from '../../kernel/xt/compile.ts'
import { printRule } from '../../kernel/xt/print.ts'
import { readRule } from '../../kernel/xt/read.ts'
import {
  XT_ADDRTYPE_LOCAL,
  XT_CONNTRACK_STATE_DNAT,
  type XtMatch,
  type XtRule,
  type XtTarget,
} from '../../kernel/xt/rule.ts'
import {
  fixedRules,
  NO_FIXED_RULES,
  placeOfTable,
  type ScopeOperations,
  type XtChain,
  type XtJump,
  type XtTableName,
} from '../../kernel/xt/scope.ts'
import { ScopeDiff } from '../../kernel/xt/scope-diff.ts'
import { WrittenDiff } from '../../kernel/xt/scope-written.ts'
import type { FrontendTable } from '../../model/frontend.ts'
import { type Detector, detectorFor } from '../common/detector.ts'
import { LOOPBACKS, markOf } from '../common/rules.ts'
import { LAYOUTS, NFT_FAMILIES, PROTOCOLS as PROTOCOL_NAMES } from '../common/tables.ts'
import {
  isIpvsChain,
  isOurChain,
  isServiceChain,
  KUBE_CHAINS,
  KUBE_IPVS_FILTER,
  KUBE_IPVS_OUT_FILTER,
  KUBE_LOAD_BALANCER,
  KUBE_NODE_PORT,
  KUBE_PROXY_CANARY,
  KUBE_SOURCE_RANGES_FIREWALL,
} from '../xt-common/layout.ts'
import {
  ACCEPT,
  addressOf,
  comment,
  DROP,
  forwardRules,
  fromPods,
  jump,
  markRule,
  masqueradeRules,
  NEW,
  NO_MATCHES,
  PROTOCOLS,
  REJECT,
  TO_LOCAL,
} from '../xt-common/rules-parts.ts'
import { commentOfSet, NODE_PORT_SETS, type SetStem, setName } from './layout.ts'
import type { IpvsOptions, RuleWriter } from './settings.ts'
import type { Chains } from './state.ts'

/*
 * Wants, observes and compares the chains of kube-proxy's IPVS mode (1.36), in tables that other programs also use.
 * People and tools expect their names, order and comments.
 */

interface ChainInputs {
  readonly family: NftFamily
  readonly masqueradeMark: number
  readonly masqueradeAll: boolean
  readonly detector: Detector | undefined
}

/**
 * Makes all chains of one family. No rule is about a single Service: the ipsets hold the addresses of
 * Services. Rules about empty sets exist as well (kube-proxy omits them), so that the chains stay when
 * Services come and go.
 */
function chainsOf(inputs: ChainInputs): readonly XtChain[] {
  const { family, masqueradeMark: mark } = inputs
  const chain = (table: XtTableName, name: string, rules: readonly XtRule[]): XtChain => {
    return { family, table, name, rules, last: [] }
  }
  const portal = wordsOf(family)
  return [
    chain('nat', KUBE_CHAINS.services, servicesRules(inputs, portal)),
    chain('nat', KUBE_CHAINS.postrouting, [
      portal.named('LOOP-BACK', FROM, { kind: 'MASQUERADE', randomFully: false }),
      ...masqueradeRules(mark),
    ]),
    chain('nat', KUBE_NODE_PORT, nodePortRules(portal)),
    chain('nat', KUBE_LOAD_BALANCER, [
      portal.named('LOAD-BALANCER-LOCAL', BOTH, RETURN),
      { matches: NO_MATCHES, target: MASQUERADE_LATER },
    ]),
    chain('nat', KUBE_CHAINS.markMasq, [markRule(mark)]),
    chain('filter', KUBE_CHAINS.forward, forwardRules(mark)),
    chain('filter', KUBE_NODE_PORT, [portal.named('HEALTH-CHECK-NODE-PORT', PORT, ACCEPT)]),
    chain('filter', KUBE_CHAINS.proxyFirewall, [
      portal.named('LOAD-BALANCER-FW', BOTH, jump(KUBE_SOURCE_RANGES_FIREWALL)),
    ]),
    chain('filter', KUBE_SOURCE_RANGES_FIREWALL, [
      portal.named('LOAD-BALANCER-SOURCE-CIDR', FROM, RETURN),
      portal.named('LOAD-BALANCER-SOURCE-IP', FROM, RETURN),
      { matches: NO_MATCHES, target: DROP },
    ]),
    chain('filter', KUBE_IPVS_FILTER, filterRules(inputs, portal)),
    // kube-proxy has a rule here for each address that the node may not use. Our own table drops these
    // packets earlier.
    chain('filter', KUBE_IPVS_OUT_FILTER, []),
  ]
}

type Way = readonly [table: XtTableName, from: string, to: string, comment: string]

const WAYS: readonly Way[] = [
  ['nat', 'OUTPUT', KUBE_CHAINS.services, 'kubernetes service portals'],
  ['nat', 'PREROUTING', KUBE_CHAINS.services, 'kubernetes service portals'],
  ['nat', 'POSTROUTING', KUBE_CHAINS.postrouting, 'kubernetes postrouting rules'],
  ['filter', 'FORWARD', KUBE_CHAINS.forward, 'kubernetes forwarding rules'],
  ['filter', 'INPUT', KUBE_NODE_PORT, 'kubernetes health check rules'],
  ['filter', 'INPUT', KUBE_CHAINS.proxyFirewall, 'kube-proxy firewall rules'],
  ['filter', 'FORWARD', KUBE_CHAINS.proxyFirewall, 'kube-proxy firewall rules'],
  ['filter', 'INPUT', KUBE_IPVS_FILTER, 'kubernetes ipvs access filter'],
  ['filter', 'OUTPUT', KUBE_IPVS_OUT_FILTER, 'kubernetes ipvs access filter'],
]

/** Gives the jumps in the order in which they are inserted: of several in one chain, the last one ends up first. */
function jumpsOf(family: NftFamily): readonly XtJump[] {
  return WAYS.map(([table, chain, to, text]): XtJump => {
    const rule: XtRule = { matches: [comment(text)], target: jump(to) }
    return { family, table, chain, rule, removed: true }
  })
}

/** The only rule that kube-proxy does not have: it marks these chains as kprobe's. */
const SENT_ON: XtRule = {
  matches: [
    comment('sent on to another virtual server'),
    { kind: 'conntrack', states: XT_CONNTRACK_STATE_DNAT, inverted: false },
  ],
  target: { kind: 'RETURN' },
}

const RETURN: XtTarget = { kind: 'RETURN' }
const MASQUERADE_LATER = jump(KUBE_CHAINS.markMasq)

const BOTH = ['dst', 'dst'] as const
const PORT = ['dst'] as const
const FROM = ['dst', 'dst', 'src'] as const

type Dimensions = readonly ('src' | 'dst')[]

/** Makes rules that match with the sets of one family. */
function wordsOf(family: NftFamily) {
  const inSet = (stem: SetStem, dimensions: Dimensions): XtMatch => {
    return { kind: 'set', set: setName(stem, LAYOUTS[family].model), dimensions, inverted: false }
  }
  /** Makes a match with a set, with kube-proxy's comment for the set. */
  const matches = (stem: SetStem, dimensions: Dimensions): readonly XtMatch[] => {
    return [comment(commentOfSet(stem)), inSet(stem, dimensions)]
  }
  const named = (stem: SetStem, dimensions: Dimensions, target: XtTarget): XtRule => {
    return { matches: matches(stem, dimensions), target }
  }
  const plain = (stem: SetStem, dimensions: Dimensions, target: XtTarget): XtRule => {
    return { matches: [inSet(stem, dimensions)], target }
  }
  return { inSet, matches, named, plain }
}

type Words = ReturnType<typeof wordsOf>

function servicesRules(inputs: ChainInputs, portal: Words): readonly XtRule[] {
  return [
    { source: addressOf(LOOPBACKS[inputs.family]), matches: NO_MATCHES, target: RETURN },
    portal.named('LOAD-BALANCER', BOTH, jump(KUBE_LOAD_BALANCER)),
    clusterIpRule(inputs, portal),
    portal.named('EXTERNAL-IP', BOTH, MASQUERADE_LATER),
    ...externalRules(portal.matches('EXTERNAL-IP', BOTH)),
    ...externalRules(portal.matches('EXTERNAL-IP-LOCAL', BOTH)),
    { matches: [TO_LOCAL], target: jump(KUBE_NODE_PORT) },
    portal.plain('CLUSTER-IP', BOTH, ACCEPT),
    portal.plain('LOAD-BALANCER', BOTH, ACCEPT),
  ]
}

/** Makes the masquerade rule of ClusterIPs. The node's own packets have the ClusterIP itself as their source. */
function clusterIpRule({ masqueradeAll, detector }: ChainInputs, portal: Words): XtRule {
  if (masqueradeAll) return portal.named('CLUSTER-IP', BOTH, MASQUERADE_LATER)
  if (detector === undefined) return portal.named('CLUSTER-IP', ['src', 'dst'], MASQUERADE_LATER)
  return { ...fromPods(detector, true), ...portal.named('CLUSTER-IP', BOTH, MASQUERADE_LATER) }
}

const NOT_BRIDGED: XtMatch = { kind: 'physdev-is-in', inverted: true }
const NOT_FROM_LOCAL: XtMatch = {
  kind: 'addrtype',
  sourceTypes: XT_ADDRTYPE_LOCAL,
  destinationTypes: 0,
  sourceInverted: true,
}

function externalRules(matches: readonly XtMatch[]): readonly XtRule[] {
  return [
    { matches: [...matches, NOT_BRIDGED, NOT_FROM_LOCAL], target: ACCEPT },
    { matches: [...matches, TO_LOCAL], target: ACCEPT },
  ]
}

function nodePortRules(portal: Words): readonly XtRule[] {
  return PROTOCOL_NAMES.flatMap(protocol => {
    const { all, local } = NODE_PORT_SETS[protocol]
    const dimensions = protocol === 'SCTP' ? BOTH : PORT
    return [
      { protocol: PROTOCOLS[protocol], ...portal.named(local, dimensions, RETURN) },
      { protocol: PROTOCOLS[protocol], ...portal.named(all, dimensions, MASQUERADE_LATER) },
    ]
  })
}

/** Makes the rules that hide the node's own ports behind addresses of Services: k/k#72236. */
function filterRules({ family }: ChainInputs, portal: Words): readonly XtRule[] {
  return [
    portal.plain('LOAD-BALANCER', BOTH, RETURN),
    portal.plain('CLUSTER-IP', BOTH, RETURN),
    portal.plain('EXTERNAL-IP', BOTH, RETURN),
    portal.plain('EXTERNAL-IP-LOCAL', BOTH, RETURN),
    portal.plain('HEALTH-CHECK-NODE-PORT', PORT, RETURN),
    // Private virtual servers are in no set, so packets reach them only by a redirect.
    SENT_ON,
    { matches: [NEW, portal.inSet('IPVS-IPS', PORT)], target: REJECT[family] },
  ]
}

const TABLES: readonly XtTableName[] = ['filter', 'nat']
const PLACES = NFT_FAMILIES.flatMap(family => TABLES.map(table => ({ family, table })))
const JUMPS = NFT_FAMILIES.flatMap(jumpsOf)

/** Makes the codec of rules about ipsets. Such rules contain set numbers, which are read from the kernel. */
export function codecOf(ipset: Pick<IpsetClient, 'indexOf' | 'nameOf'>): RuleCodec {
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
    return { family, masqueradeAll, masqueradeMark: markOf(masqueradeBit), detector }
  })
  const key = rules === 'iptables' ? JSON.stringify(inputs) : ''
  if (before.kind === 'wanted' && before.key === key) return before
  const fixed = rules === 'iptables' ? fixedRules(inputs.flatMap(chainsOf), JUMPS) : undefined
  return { kind: 'wanted', fixed, key }
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
  { rules, aside = false }: ReadOptions & { readonly rules: RuleWriter },
): Promise<ChainsSeen> {
  if (rules === 'nftables') {
    const mark = await nft.listChains(
      NFT_FAMILIES.map(family => ({ family, table: 'filter', chains: name => name === KUBE_IPVS_FILTER })),
      { aside },
    )
    if (!isOurs(mark.observed, ipset)) return { ...mark, observed: new Map() }
  }
  return await nft.listChains(
    PLACES.map(place => ({ ...place, chains: name => !isServiceChain(KUBE_CHAINS, place.table, name) })),
    { aside },
  )
}

/** Tests whether the chains contain a rule that kube-proxy does not write. */
function isOurs(observed: Observed, ipset: IpsetClient): boolean {
  const { nameOfIpset } = codecOf(ipset)
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

/** Tests whether a serving iptables mode, ours or kube-proxy's, owns the chains that both modes have. */
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

/** Tests whether a jump belongs to IPVS mode alone. Jumps that iptables mode has in the same form stay with it. */
function isOnlyOurs({ table, rule: { target } }: XtJump): boolean {
  const chain = target?.kind === 'jump' ? target.chain : ''
  return chain === KUBE_CHAINS.proxyFirewall || isOnlyIpvs(table, chain)
}

type ChainPhase = 'add-chains' | 'take-chains' | 'remove-chains'

/** Makes the operations that lead from one state to the other, with the phase that sends them. */
export function diffChains(
  from: Chains,
  to: Chains,
  codec: RuleCodec,
): { readonly kind: ChainPhase; readonly operations: ScopeOperations } {
  const fixed = to.kind === 'wanted' ? to.fixed : undefined
  if (from.kind === 'wanted') {
    const kind = fixed === undefined ? 'remove-chains' : 'add-chains'
    if (from.fixed === fixed) return { kind, operations: [] }
    const diff = new WrittenDiff(from.fixed ?? NO_FIXED_RULES, fixed ?? NO_FIXED_RULES)
    return { kind, operations: diff.finish(new Map()) }
  }
  const isShared = isIptablesMode(from.observed)
  const isPart = isShared && fixed === undefined
  const isOurs = isPart ? isOnlyIpvs : isIpvsChain
  const diff = new ScopeDiff(from.observed, { codec, isOurs, keepsUsed: fixed === undefined })
  for (const chain of fixed?.chains.values() ?? []) diff.want({ chain, owner: undefined, entries: [] })
  const unwanted = fixed !== undefined ? [] : isPart ? JUMPS.filter(isOnlyOurs) : JUMPS
  const kind = fixed === undefined ? 'remove-chains' : isShared ? 'take-chains' : 'add-chains'
  return { kind, operations: diff.finish(fixed?.jumps ?? [], unwanted) }
}
