import { NF_DROP } from '../../kernel/nft/constants.ts'
import type { Chain, Expression, Rule, Table } from '../../kernel/nft/state.ts'
import {
  CHAIN_FIREWALL,
  CHAIN_LATE_OUTPUT,
  CHAIN_LATE_PREROUTING,
  CHAIN_LOCALHOST,
  CHAIN_NO_LOCAL,
  CHAIN_REJECT,
  type Expressions,
  type RuleContext,
  rule,
} from './rules.ts'

const PREFIX = 'kprobe '
export const LOG_LIMIT = { perSecond: 20, burst: 50 } as const
export const LOGGED_BYTES = 128

/** Gives what a rule puts before the packets that it logs: the name of its chain, or the reason. */
export function logPrefix(name: string): string {
  return `${PREFIX}${name}`
}

/** Logs the packets within the limit. The prefix names the chain whose rule rejects or drops them. */
export function logTo(group: number, chain: string): Expressions {
  return [
    { kind: 'limit', ...LOG_LIMIT },
    { kind: 'log', group, prefix: logPrefix(chain), packetBytes: LOGGED_BYTES },
  ]
}

/** Adds a rule that logs before each rule that rejects or drops. Gives the chain itself where nothing is logged. */
export function withLogs(chain: Chain, { logGroup = 0 }: Pick<RuleContext, 'logGroup'>): Chain {
  if (logGroup === 0 || !chain.rules.some(isRefusing)) return chain
  const rules = chain.rules.flatMap((its): readonly Rule[] => {
    if (!isRefusing(its)) return [its]
    const match = its.expressions.slice(0, its.expressions.findIndex(isEnd))
    return [rule([...match, ...logTo(logGroup, chain.name)]), its]
  })
  return { ...chain, rules }
}

/** Gives the chain or reason that the prefix of a logged packet names; undefined for another program's rules. */
export function nameOfPrefix(prefix: string): string | undefined {
  return prefix.startsWith(PREFIX) ? prefix.slice(PREFIX.length) : undefined
}

/** Gives the NFLOG group of our rules that log; undefined where none does. */
export function logGroupOf(tables: readonly Table[]): number | undefined {
  const rules = tables.flatMap(({ chains }) => [...chains.values()].flatMap(chain => chain.rules))
  return rules.map(ownLog).find(log => log !== undefined)?.group
}

/** Tests whether the rule logs to `kprobe drops`. */
export function isLogging(its: Rule): boolean {
  return ownLog(its) !== undefined
}

function ownLog({ expressions }: Rule) {
  const log = expressions.find(each => each.kind === 'log')
  return log?.kind === 'log' && nameOfPrefix(log.prefix) !== undefined ? log : undefined
}

/** Gives the rules of a chain that refuse packets. Their counters count all of these, logged or not. */
export function refusingRules<T extends { readonly rule: Rule }>(rules: readonly T[]): readonly T[] {
  return rules.filter(each => isRefusing(each.rule))
}

/** A rule that changes the packet on its way to the end would do so twice. */
function isRefusing({ expressions }: Rule): boolean {
  const last = expressions.at(-1)
  if (expressions.some(({ kind }) => kind === 'meta-set')) return false
  if (last?.kind === 'target') return last.name === 'REJECT'
  return last?.kind === 'reject' || (last?.kind === 'verdict' && last.verdict.code === NF_DROP)
}

function isEnd({ kind }: Expression): boolean {
  return kind === 'counter' || kind === 'reject' || kind === 'verdict'
}

/** The reason for which a rule of kprobe rejects or drops a packet; `unknown` where the rule does not show it. */
export type VerdictReason =
  | 'no-endpoints'
  | 'no-local-endpoints'
  | 'source-ranges'
  | 'no-such-port'
  | 'no-such-cluster-ip'
  | 'no-relay'
  | 'unknown'

interface RefusingRule {
  /** The name of the chain, without its table. */
  readonly chain: string
  /** The rule as it is listed, with its comment. */
  readonly text: string
  /** A Service has the address and port. */
  readonly isServed: boolean
}

/** Reads the reason from the rule: its chain in our own tables, its comment in the tables of iptables. */
export function verdictReason({ chain, text, isServed }: RefusingRule): VerdictReason {
  if (chain === CHAIN_FIREWALL || isXtFirewall(chain)) return 'source-ranges'
  if (chain === CHAIN_LATE_PREROUTING || chain === CHAIN_LATE_OUTPUT) return 'no-such-cluster-ip'
  if (chain === CHAIN_LOCALHOST) return 'no-relay'
  if (chain === CHAIN_REJECT) return isServed ? 'no-endpoints' : 'no-such-port'
  if (chain === CHAIN_NO_LOCAL || /has no local endpoints/.test(text)) return 'no-local-endpoints'
  if (/has no endpoints/.test(text)) return 'no-endpoints'
  if (/^[A-Z0-9-]+$/.test(chain)) return 'unknown'
  // The last release drops in the map `dispatch` and in chains such as `loc-2-0`.
  return isServed ? 'no-local-endpoints' : 'unknown'
}

/** Reads the reason from the name that a logged packet has: a chain of our own tables, or in the tables of iptables the reason. */
export function loggedReason(name: string, isServed: boolean): VerdictReason {
  return isReason(name) ? name : verdictReason({ chain: name, text: '', isServed })
}

function isReason(name: string): name is VerdictReason {
  return Object.hasOwn(TEXTS, name)
}

/** Tests whether a refusal by this chain, or for this reason, is answered with a reject. Other refusals drop in silence. */
export function isRejecting(name: string): boolean {
  return name === CHAIN_REJECT || name === CHAIN_LOCALHOST || name === 'no-endpoints'
}

function isXtFirewall(chain: string): boolean {
  return /-(?:PROXY|SOURCE-RANGES)-FIREWALL(?:-IP(?:-[0-9A-F])?)?$/.test(chain)
}

const TEXTS: Readonly<Record<VerdictReason, string>> = {
  'no-endpoints': 'the Service has no usable endpoint',
  'no-local-endpoints': 'the traffic policy is Local, and this node has no usable endpoint',
  'source-ranges': 'the client is not in loadBalancerSourceRanges',
  'no-such-port': 'no Service has this port at this address',
  'no-such-cluster-ip': 'no Service has this ClusterIP',
  'no-relay': 'the relay at localhost serves no SCTP',
  unknown: 'a rule of kprobe',
}

export function reasonText(reason: VerdictReason): string {
  return TEXTS[reason]
}
