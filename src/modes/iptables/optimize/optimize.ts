import type { Ip } from '../../../base/ip.ts'
import { readU32be } from '../../../base/octets.ts'
import { IPPROTO_SCTP, IPPROTO_TCP, IPPROTO_UDP } from '../../../kernel/nft/constants.ts'
import type { XtMatch, XtRule } from '../../../kernel/xt/rule.ts'
import type { XtChain, XtEntry } from '../../../kernel/xt/scope.ts'
import type { Asked } from '../../../kernel/xt/scope-held.ts'
import {
  base32,
  base32Hash,
  type ChainNames,
  type ServiceChainKind,
  serviceChain,
  serviceChainKind,
} from '../../xt-common/layout.ts'
import { jump } from '../../xt-common/rules-parts.ts'
import type { Statics } from '../state.ts'
import { dividedChains, placeEntry, waysFrom } from './dispatch.ts'

/**
 * Transforms the rules of a Service so that packets pass fewer rules and the kernel holds fewer. Verdicts stay the
 * same.
 */
export function optimizeService(rules: Asked, statics: Statics): Asked {
  const { names } = statics.options
  const { chains, redirect } = shareChains(rules.chains, names)
  const redirected = (list: readonly XtRule[], { family }: XtChain): readonly XtRule[] =>
    withoutIdle(
      list.map(rule => redirect(rule, family)),
      names,
    )
  return {
    chains: chains.map(chain =>
      chain.shared
        ? chain
        : { ...chain, rules: redirected(chain.rules, chain), last: redirected(chain.last, chain) },
    ),
    entries: once(
      rules.entries.map(entry => placeEntry({ ...entry, rule: redirect(entry.rule, entry.family) }, statics)),
    ),
  }
}

/** Makes the fixed chains, and those among which their lists are divided. */
export function optimizeFixed(chains: readonly XtChain[], statics: Statics): readonly XtChain[] {
  const fixed = chains.map(chain => {
    const ways = waysFrom(chain, statics)
    return ways.length === 0 ? chain : { ...chain, rules: [...chain.rules, ...ways] }
  })
  return [...fixed, ...dividedChains(statics)]
}

function once(entries: readonly XtEntry[]): readonly XtEntry[] {
  if (entries.length < 2) return entries
  const seen = new Set<string>()
  return entries.filter(({ family, table, chain, rule }) => {
    const key = `${family} ${table} ${chain} ${ruleKey(rule)}`
    return !seen.has(key) && seen.add(key) !== undefined
  })
}

/** Chains of one Service in one family, grouped by the change of their names. */
interface Shared {
  readonly chains: readonly XtChain[]
  /** Returns a rule whose target has the new name of the chain. */
  readonly redirect: (rule: XtRule, family: XtChain['family']) => XtRule
}

/**
 * Merges chains of equal content, and names the result after that content: chains of single endpoints, and chains
 * that only choose among such. A chain that remembers clients stays separate, since lists of `recent` belong to one
 * Service.
 */
function shareChains(chains: readonly XtChain[], names: ChainNames): Shared {
  const renamed = new Map<string, string>()
  const redirect: Shared['redirect'] = (rule, family) => {
    const { target } = rule
    if (target?.kind !== 'jump') return rule
    const name = renamed.get(`${family} ${target.chain}`)
    return name === undefined ? rule : { ...rule, target: jump(name) }
  }
  const done = new Map<string, XtChain>()
  const share = (chain: XtChain, kind: ServiceChainKind, rules: readonly XtRule[]): void => {
    const content = rules.map(rule => redirect(withoutComments(rule), chain.family))
    const name = serviceChain(names, kind, contentName(content, names))
    renamed.set(`${chain.family} ${chain.name}`, name)
    done.set(`${chain.family} ${name}`, { ...chain, name, rules: content, shared: true })
  }
  const others: XtChain[] = []
  const lists: XtChain[] = []
  for (const chain of chains) {
    const kind = serviceChainKind(names, chain.name)
    if (kind === 'SEP' && isOfPacketsAlone(chain)) share(chain, kind, chain.rules)
    else if (kind === 'SVC' || kind === 'SVL') lists.push(chain)
    else others.push(chain)
  }
  for (const chain of lists) {
    const isChoice = chain.rules.length > 0 && chain.rules.every(rule => isChoiceOf(rule, chain, renamed))
    if (isChoice) share(chain, 'SVC', chain.rules)
    else others.push(chain)
  }
  return { chains: [...others, ...done.values()], redirect }
}

function contentName(rules: readonly XtRule[], names: ChainNames): string {
  return endpointName(rules, names) ?? base32Hash(JSON.stringify(rules))
}

/**
 * Encodes protocol, port and address directly, where a chain contains nothing else. A hash takes longer, and chains
 * of endpoints are the most numerous. Undefined for all other chains, and for addresses that are too long.
 */
function endpointName(rules: readonly XtRule[], { markMasq }: ChainNames): string | undefined {
  const [hairpin, translation, ...more] = rules
  if (hairpin === undefined || translation === undefined || more.length > 0) return undefined
  const { protocol, target, matches } = translation
  if (protocol === undefined || target?.kind !== 'DNAT') return undefined
  const { ip, port } = target
  const isUsual =
    isAbout(hairpin, { source: ip, protocol: undefined }) &&
    isAbout(translation, { source: undefined, protocol: protocol.number }) &&
    hairpin.target?.kind === 'jump' &&
    hairpin.target.chain === markMasq &&
    hairpin.matches.length === 0 &&
    matches.length === 1 &&
    matches.every(match => isTransport(match, protocol.number))
  if (!isUsual || ip.length !== 4) return undefined
  const address = readU32be(ip)
  const high = (protocol.number << 24) | (port << 8) | (address >>> 24)
  return base32(high, (address >>> 16) & 255) + base32(address << 16, 0)
}

interface About {
  readonly source: Ip | undefined
  readonly protocol: number | undefined
}

/** Returns whether a rule matches this source and this protocol, and nothing else beside its matches. */
function isAbout(rule: XtRule, about: About): boolean {
  const { inInterface, outInterface, protocol, source, destination } = rule
  if (inInterface !== undefined || outInterface !== undefined || destination !== undefined) return false
  if (protocol?.number !== about.protocol || protocol?.inverted === true) return false
  if (source?.ip !== about.source || source?.inverted === true) return false
  return source === undefined || /^\xff+$/.test(source.mask)
}

function isTransport(match: XtMatch, protocol: number): boolean {
  return (
    (match.kind === 'tcp' || match.kind === 'udp' || match.kind === 'sctp') &&
    TRANSPORTS[match.kind] === protocol &&
    match.sourcePorts === undefined &&
    match.destinationPorts === undefined
  )
}

const TRANSPORTS = { tcp: IPPROTO_TCP, udp: IPPROTO_UDP, sctp: IPPROTO_SCTP } as const

function isOfPacketsAlone({ rules, last }: XtChain): boolean {
  return (
    last.length === 0 && rules.every(({ matches }) => matches.every(({ kind }) => ONLY_OF_PACKETS.has(kind)))
  )
}

const ONLY_OF_PACKETS: ReadonlySet<string> = new Set(['comment', 'tcp', 'udp', 'sctp'])

function isChoiceOf(
  { target, matches }: XtRule,
  { family }: XtChain,
  renamed: ReadonlyMap<string, string>,
): boolean {
  return (
    target?.kind === 'jump' &&
    renamed.has(`${family} ${target.chain}`) &&
    matches.every(({ kind }) => kind === 'comment' || kind === 'statistic')
  )
}

/**
 * Removes rules without effect: rules that only count, and rules that repeat an earlier decisive one. Comments are
 * ignored.
 */
export function withoutIdle(rules: readonly XtRule[], names: ChainNames): readonly XtRule[] {
  const seen = new Set<string>()
  const left = rules.filter(rule => {
    if (!rule.matches.every(isSteady)) return true
    if (rule.target === undefined) return false
    if (!isSpent(rule, names)) return true
    const key = ruleKey(rule)
    return !seen.has(key) && seen.add(key) !== undefined
  })
  return left.length === rules.length ? rules : left
}

/** Returns equal keys for rules that do the same. */
function ruleKey(rule: XtRule): string {
  return JSON.stringify(withoutComments(rule))
}

function withoutComments(rule: XtRule): XtRule {
  const matches = rule.matches.filter(({ kind }) => kind !== 'comment')
  return matches.length === rule.matches.length ? rule : { ...rule, matches }
}

/** Returns whether a match gives the same result for a packet each time and has no side effect. */
function isSteady({ kind }: XtMatch): boolean {
  switch (kind) {
    case 'comment':
    case 'tcp':
    case 'udp':
    case 'sctp':
    case 'addrtype':
      return true
    default:
      return false
  }
}

/**
 * Returns whether a second equal rule has no effect on a packet that this rule matched. Either the packet goes no further, or
 * a repetition changes nothing. If a chain of a Service lets a packet return, it made no random choice: a balanced
 * packet never returns.
 */
function isSpent({ target }: XtRule, names: ChainNames): boolean {
  switch (target?.kind) {
    case 'ACCEPT':
    case 'DROP':
    case 'RETURN':
    case 'REJECT':
    case 'DNAT':
    case 'goto':
      return true
    case 'jump':
      return target.chain === names.markMasq || serviceChainKind(names, target.chain) !== undefined
    default:
      return false
  }
}
