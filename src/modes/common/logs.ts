import type { FlagReader, FlagSpec } from '../../config/flag.ts'
import { NF_DROP } from '../../kernel/nft/constants.ts'
import type { Expression, Rule } from '../../kernel/nft/expression.ts'
import type { Chain, Table } from '../../kernel/nft/state.ts'
import { type Expressions, type RuleContext, rule } from './expressions.ts'

const PREFIX = 'kprobe '
/** The limit of each rule that logs. */
export const LOG_LIMIT = { perSecond: 20, burst: 50 } as const
/** Addresses and ports, behind options and extension headers. */
export const LOGGED_BYTES = 128

const GROUP_MAX = 65_535

/** The flag of the modes whose rules can log. */
export const LOG_FLAG: FlagSpec = {
  name: 'log-rejects',
  kind: 'integer',
  placeholder: 'GROUP',
  default: '0',
  group: 'Traffic',
  help: `log rejected and dropped packets to this NFLOG group, 1 to ${GROUP_MAX}, for \`kprobe drops\`; 0: log none; nftables and iptables mode`,
}

/** Reads the flag, which is the only place of this setting, also with --config. */
export function readLogGroup(reader: FlagReader): number {
  return reader.integer(LOG_FLAG.name, { min: 0, max: GROUP_MAX, fallback: 0 })
}

/** Gives the flag as text, for a mode that has it. */
export function logFlagText({
  logRejects,
}: {
  readonly logRejects: number
}): Readonly<Record<string, string>> {
  return { [LOG_FLAG.name]: `${logRejects}` }
}

/** Gives what a rule puts before the packets that it logs: the name of its chain, or the reason. */
export function logPrefix(name: string): string {
  return `${PREFIX}${name}`
}

/** Counts all packets, and logs those within the limit. The prefix names the chain whose rule rejects or drops them. */
export function logTo(group: number, chain: string): Expressions {
  return [
    { kind: 'counter' },
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

/** Rules of a chain whose counters, together, count every packet that its rules refuse, logged or not. */
export function countingRules<T extends { readonly rule: Rule }>(rules: readonly T[]): readonly T[] {
  const logging = rules.filter(each => isLogging(each.rule))
  // In a rule of iptables the counter stands behind the limit: the rules that refuse count all.
  const isCountedFirst = ({ rule: { expressions } }: T) =>
    expressions.findIndex(({ kind }) => kind === 'counter') <
    expressions.findIndex(({ kind }) => kind === 'limit')
  if (logging.every(isCountedFirst)) return logging
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
