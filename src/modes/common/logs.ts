import { NF_DROP } from '../../kernel/nft/constants.ts'
import type { Expression, Rule } from '../../kernel/nft/expression.ts'
import type { Chain, Table } from '../../kernel/nft/state.ts'
import { type Expressions, type RuleContext, rule } from './expressions.ts'

const PREFIX = 'kprobe '
/** The limit of each rule that logs. */
const PER_SECOND = 20
const BURST = 50
/** Addresses and ports, behind options and extension headers. */
const PACKET_BYTES = 128

/** Counts all packets, and logs those within the limit. The prefix names the chain whose rule rejects or drops them. */
export function logTo(group: number, chain: string): Expressions {
  return [
    { kind: 'counter' },
    { kind: 'limit', perSecond: PER_SECOND, burst: BURST },
    { kind: 'log', group, prefix: `${PREFIX}${chain}`, packetBytes: PACKET_BYTES },
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

/** Gives the chain that the prefix of a logged packet names; undefined for packets of another program's rules. */
export function chainOfPrefix(prefix: string): string | undefined {
  return prefix.startsWith(PREFIX) ? prefix.slice(PREFIX.length) : undefined
}

/** Gives the NFLOG group of our rules that log; undefined where none does. */
export function logGroupOf(tables: readonly Table[]): number | undefined {
  const rules = tables.flatMap(({ chains }) => [...chains.values()].flatMap(chain => chain.rules))
  return rules.map(ownLog).find(log => log !== undefined)?.group
}

/** Tests whether withLogs added the rule. */
export function isLogging(its: Rule): boolean {
  return ownLog(its) !== undefined
}

function ownLog({ expressions }: Rule) {
  const log = expressions.find(each => each.kind === 'log')
  return log?.kind === 'log' && chainOfPrefix(log.prefix) !== undefined ? log : undefined
}

/** A rule that changes the packet on its way to the end would do so twice. */
function isRefusing({ expressions }: Rule): boolean {
  const last = expressions.at(-1)
  if (expressions.some(({ kind }) => kind === 'meta-set')) return false
  return last?.kind === 'reject' || (last?.kind === 'verdict' && last.verdict.code === NF_DROP)
}

function isEnd({ kind }: Expression): boolean {
  return kind === 'counter' || kind === 'reject' || kind === 'verdict'
}
