import { cString } from '../../base/octets.ts'
import type { ByteView } from '../../netlink/attribute.ts'
import type { Connection } from '../../netlink/connection.ts'
import { NLM_F_DUMP } from '../../netlink/constants.ts'
import { malformed } from '../../netlink/errors.ts'
import { type Message, nfSpan, readNfGenMsg } from '../../netlink/message.ts'
import { readAttributes } from '../../netlink/schema.ts'
import * as nft from './constants.ts'
import * as datatypes from './datatypes.ts'
import { decodeChain } from './decode.ts'
import { dumpRequest, getRequest } from './dump.ts'
import { expressionOf } from './expression-attributes.ts'
import { RULE } from './schema.ts'
import {
  type Chain,
  COMMENT_MATCH,
  type Expression,
  type HookFamily,
  type NftFamily,
  targetsOf,
} from './state.ts'
import type { Operation, Transaction } from './transaction.ts'
import { commentOf } from './userdata.ts'

export interface SurveyedChain {
  /** nft's name: ip, ip6, inet, bridge, arp, netdev; a number for any other family. */
  readonly family: string
  readonly table: string
  readonly chain: Chain
}

/** linux/netfilter.h, NFPROTO_*. */
const FAMILY_NAMES: Readonly<Record<number, string>> = {
  1: 'inet',
  2: 'ip',
  3: 'arp',
  5: 'netdev',
  7: 'bridge',
  10: 'ip6',
}

/**
 * Lists every chain of this network namespace. It reads a list that a commit interrupted once more, and then accepts
 * it.
 */
export async function surveyChains(connection: Connection): Promise<readonly SurveyedChain[]> {
  const read = async () => {
    const chains: SurveyedChain[] = []
    const whole = await connection.dump({
      operation: 'list',
      object: 'chains',
      build: sequence =>
        getRequest({ type: nft.NFT_MSG_GETCHAIN, flags: NLM_F_DUMP, family: nft.NFPROTO_UNSPEC, sequence }),
      onMessage(view, message) {
        const { table, value } = decodeChain(view, message)
        chains.push({ family: familyName(view, message), table, chain: value })
      },
    })
    return { chains, whole }
  }
  const first = await read()
  return first.whole ? first.chains : (await read()).chains
}

export function familyName(view: ByteView, message: Message): string {
  const { family } = readNfGenMsg(view, message)
  return FAMILY_NAMES[family] ?? String(family)
}

/** A table of another program, with the details needed to remove some of its chains and keep all others. */
export interface ForeignTable<F extends HookFamily = NftFamily> {
  readonly family: F
  readonly name: string
  readonly chains: readonly ForeignChain[]
}

export interface ForeignChain {
  readonly name: string
  /** A base chain is attached to a netfilter hook. */
  readonly isBase: boolean
  readonly rules: readonly ForeignRule[]
}

export interface ForeignRule {
  /** The kernel's number for it, the only identifier of a rule. */
  readonly handle: bigint
  /** Chains that its verdict leads to. */
  readonly targets: readonly string[]
  /** Sets and maps that it reads. */
  readonly sets: readonly string[]
  /** It drops or rejects packets, or takes its verdict from a map. */
  readonly mayDrop?: true
  /** Its comments, including those of the iptables extension `comment`. */
  readonly comments: readonly string[]
}

/**
 * Reads the chains and rules of a table; no chains when it does not exist. The caller must detect commits during the
 * read: a commit that names the generation from before the read then fails. Throws NetlinkError.
 */
export async function surveyTable<F extends HookFamily>(
  connection: Connection,
  table: Pick<ForeignTable<F>, 'family' | 'name'>,
): Promise<ForeignTable<F>> {
  const within = [table.name]
  const chains = new Map<string, ForeignChain & { readonly rules: ForeignRule[] }>()
  const chainDump = { type: nft.NFT_MSG_GETCHAIN, what: 'chains of table', table, within }
  const chainRequest = dumpRequest(chainDump, (view, message) => {
    const { table: of, value } = decodeChain(view, message)
    if (of === table.name)
      chains.set(value.name, { name: value.name, isBase: value.hook !== undefined, rules: [] })
  })
  await connection.dump(chainRequest)
  if (chains.size === 0) return { ...table, chains: [] }
  const ruleDump = { type: nft.NFT_MSG_GETRULE, what: 'rules of table', table, within }
  const ruleRequest = dumpRequest(ruleDump, (view, message) => {
    const { table: of, chain, rule } = decodeForeignRule(view, message)
    if (of === table.name) chains.get(chain)?.rules.push(rule)
  })
  await connection.dump(ruleRequest)
  return { ...table, chains: [...chains.values()] }
}

interface PlacedRule {
  readonly table: string
  readonly chain: string
  readonly rule: ForeignRule
}

/** Decodes NFT_MSG_NEWRULE of any program. */
export function decodeForeignRule(view: ByteView, message: Message): PlacedRule {
  const { table, chain, handle, expressions = [], userdata } = readAttributes(view, RULE, nfSpan(message))
  if (table === undefined || chain === undefined || handle === undefined)
    throw malformed('a rule without its table, chain or handle', message.start)
  const values = expressions.map(each => expressionOf(each))
  const comments = [commentOf(datatypes.NFTNL_UDATA_RULE_COMMENT, userdata), ...values.map(commentMatch)]
  return {
    table,
    chain,
    rule: {
      handle,
      targets: targetsOf(values),
      ...(values.some(isDropping) ? { mayDrop: true } : {}),
      sets: values.flatMap(each => (each.kind === 'lookup' ? [each.set] : [])),
      comments: comments.filter(comment => comment !== ''),
    },
  }
}

function isDropping(expression: Expression): boolean {
  switch (expression.kind) {
    case 'verdict':
      return expression.verdict.code === nft.NF_DROP
    case 'lookup':
      return expression.dreg === 'verdict'
    case 'target':
      return expression.name === 'DROP' || expression.name === 'REJECT'
    case 'unknown':
      return expression.name === 'reject'
    default:
      return expression.kind === 'reject'
  }
}

/** Returns the text of an iptables-nft comment expression; empty for any other expression. */
function commentMatch(expression: Expression): string {
  return expression.kind === 'match' && expression.name === COMMENT_MATCH ? cString(expression.info) : ''
}

export interface Owner {
  readonly ownsChain: (name: string) => boolean
  /** Returns whether a rule of a base chain that leads to a chain of the owner belongs to the owner, too. */
  readonly ownsJump: (rule: ForeignRule) => boolean
}

export interface Removal {
  readonly transaction: Transaction
  readonly chains: readonly string[]
  /** Number of rules of other chains that are removed with them. */
  readonly jumps: number
  /** Chains of the owner that stay, because rules of other programs lead to them. */
  readonly kept: readonly KeptChain[]
}

interface KeptChain {
  readonly chain: string
  readonly usedBy: string
}

/**
 * Plans the removal of the owner's chains and of the base chain rules that lead to them: first those rules, then the
 * contents of the chains, then the chains, so that no reference to a removed chain remains. Chains that rules of
 * other programs lead to stay unchanged, as do the chains that they need. Pure.
 */
export function planRemoval(table: ForeignTable, owner: Owner): Removal {
  const kept = keptChains(table, owner)
  const going = table.chains.filter(({ name }) => owner.ownsChain(name) && !kept.has(name))
  const names = new Set(going.map(({ name }) => name))
  const place = { family: table.family, table: table.name }
  const jumps = table.chains
    .filter(({ name }) => !names.has(name))
    .flatMap(chain => jumpsInto(chain, names))
    .map(({ chain, handle }): Operation => ({ ...place, verb: 'delete-rule', chain, handle }))
  return {
    transaction: [
      ...jumps,
      ...going
        .filter(({ rules }) => rules.length > 0)
        .map(({ name }): Operation => ({ ...place, verb: 'flush-chain', chain: name })),
      ...[...names].map((chain): Operation => ({ ...place, verb: 'delete-chain', chain })),
    ],
    chains: [...names],
    jumps: jumps.length,
    kept: [...kept].map(([chain, usedBy]) => ({ chain, usedBy })),
  }
}

/** Returns the chains to keep by name, each with a chain that leads to it. */
function keptChains({ chains }: ForeignTable, owner: Owner): ReadonlyMap<string, string> {
  const byName = new Map(chains.map(chain => [chain.name, chain]))
  const kept = new Map<string, string>()
  const queue = chains.filter(({ name }) => !owner.ownsChain(name))
  for (let chain = queue.shift(); chain !== undefined; chain = queue.shift()) {
    for (const rule of chain.rules) {
      if (chain.isBase && owner.ownsJump(rule)) continue
      for (const target of rule.targets) {
        const next = byName.get(target)
        if (next === undefined || !owner.ownsChain(target) || kept.has(target)) continue
        kept.set(target, chain.name)
        queue.push(next)
      }
    }
  }
  return kept
}

function jumpsInto({ name, rules }: ForeignChain, into: ReadonlySet<string>) {
  return rules
    .filter(({ targets }) => targets.some(target => into.has(target)))
    .map(({ handle }) => ({ chain: name, handle }))
}
