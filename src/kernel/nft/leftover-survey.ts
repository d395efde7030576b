import { cString } from '../../base/octets.ts'
import type { ByteView } from '../../netlink/bytes.ts'
import type { Connection } from '../../netlink/connection.ts'
import { malformed } from '../../netlink/errors.ts'
import { type Message, NFGENMSG_LENGTH } from '../../netlink/message.ts'
import { readAttributes } from '../../netlink/schema.ts'
import * as nft from './constants.ts'
import { NFTNL_UDATA_RULE_COMMENT } from './datatypes.ts'
import { decodeChain } from './decode.ts'
import { dumpRequest } from './dump.ts'
import { COMMENT_MATCH, type Expression, targetsOf } from './expression.ts'
import { expressionOf } from './expression-attributes.ts'
import { RULE, TABLE_MEMBER } from './schema.ts'
import type { TableName } from './state.ts'
import { commentOf } from './userdata.ts'

/** A table of another program, with the details needed to remove some of its chains and keep all others. */
export interface ForeignTable extends TableName {
  readonly chains: readonly ForeignChain[]
}

export interface ForeignChain {
  readonly name: string
  /** Whether it is attached to a netfilter hook. */
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
  /** Its comments, including those of the iptables extension `comment`. */
  readonly comments: readonly string[]
}

/**
 * Reads the chains and rules of a table; no chains when it does not exist. The caller must detect commits during the
 * read: a commit that names the generation from before the read then fails. Throws NetlinkError.
 */
export async function surveyTable(connection: Connection, table: TableName): Promise<ForeignTable> {
  const set = TABLE_MEMBER
  const filter = { table: table.name }
  const chains = new Map<string, ForeignChain & { readonly rules: ForeignRule[] }>()
  const chainDump = { type: nft.NFT_MSG_GETCHAIN, what: 'chains of table', table, set, filter }
  const chainRequest = dumpRequest(chainDump, (view, message) => {
    const { table: of, value } = decodeChain(view, message)
    if (of === table.name)
      chains.set(value.name, { name: value.name, isBase: value.hook !== undefined, rules: [] })
  })
  await connection.dump(chainRequest)
  if (chains.size === 0) return { ...table, chains: [] }
  const ruleDump = { type: nft.NFT_MSG_GETRULE, what: 'rules of table', table, set, filter }
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
  const span = { start: message.start + NFGENMSG_LENGTH, end: message.end }
  const { table, chain, handle, expressions = [], userdata } = readAttributes(view, RULE, span)
  if (table === undefined || chain === undefined || handle === undefined)
    throw malformed('a rule without its table, chain or handle', message.start)
  const values = expressions.map(each => expressionOf(each))
  const comments = [commentOf(NFTNL_UDATA_RULE_COMMENT, userdata), ...values.map(commentMatch)]
  return {
    table,
    chain,
    rule: {
      handle,
      targets: targetsOf(values),
      sets: values.flatMap(each => (each.kind === 'lookup' ? [each.set] : [])),
      comments: comments.filter(comment => comment !== ''),
    },
  }
}

/** Returns the text of an iptables-nft comment expression; empty for any other expression. */
function commentMatch(expression: Expression): string {
  return expression.kind === 'match' && expression.name === COMMENT_MATCH ? cString(expression.info) : ''
}
