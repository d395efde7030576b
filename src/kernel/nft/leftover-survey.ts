import { cString } from '../../base/octets.ts'
import type { ByteView } from '../../netlink/bytes.ts'
import type { Connection } from '../../netlink/connection.ts'
import { NLM_F_DUMP } from '../../netlink/constants.ts'
import { malformed } from '../../netlink/errors.ts'
import { type Message, NFGENMSG_LENGTH } from '../../netlink/message.ts'
import { readAttributes, writeAttributes } from '../../netlink/schema.ts'
import * as nft from './constants.ts'
import { NFTNL_UDATA_RULE_COMMENT } from './datatypes.ts'
import { decodeChain, familyOf } from './decode.ts'
import { familyNumber } from './encode.ts'
import { COMMENT_MATCH, type Expression } from './expression.ts'
import { expressionOf } from './expression-attributes.ts'
import { getRequest } from './get-request.ts'
import type { TableName } from './list.ts'
import { RULE, TABLE_MEMBER } from './schema.ts'
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
export async function surveyTable(connection: Connection, place: TableName): Promise<ForeignTable> {
  const chains = new Map<string, ForeignChain & { readonly rules: ForeignRule[] }>()
  await dump(connection, { type: nft.NFT_MSG_GETCHAIN, what: 'chains', place }, (view, message) => {
    const { table, value } = decodeChain(view, message)
    if (table !== place.name) return
    chains.set(value.name, { name: value.name, isBase: value.hook !== undefined, rules: [] })
  })
  if (chains.size === 0) return { ...place, chains: [] }
  await dump(connection, { type: nft.NFT_MSG_GETRULE, what: 'rules', place }, (view, message) => {
    const { table, chain, rule } = decodeForeignRule(view, message)
    if (table === place.name) chains.get(chain)?.rules.push(rule)
  })
  return { ...place, chains: [...chains.values()] }
}

interface DumpRequest {
  readonly type: number
  readonly what: string
  readonly place: TableName
}

async function dump(
  connection: Connection,
  { type, what, place }: DumpRequest,
  onMessage: (view: ByteView, message: Message) => void,
): Promise<void> {
  await connection.dump({
    operation: 'list',
    object: `${what} of table ${place.family} ${place.name}`,
    build: sequence => {
      const family = familyNumber(place.family)
      return getRequest({ type, flags: NLM_F_DUMP, family, sequence }, out =>
        writeAttributes(out, TABLE_MEMBER, { table: place.name }),
      )
    },
    onMessage(view, message) {
      if (familyOf(view, message) === place.family) onMessage(view, message)
    },
  })
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
      targets: values.flatMap(targetOf),
      sets: values.flatMap(each => (each.kind === 'lookup' ? [each.set] : [])),
      comments: comments.filter(comment => comment !== ''),
    },
  }
}

function targetOf(expression: Expression): readonly string[] {
  return expression.kind === 'verdict' && expression.verdict.chain !== undefined
    ? [expression.verdict.chain]
    : []
}

/** Returns the text of an iptables-nft comment expression; empty for any other expression. */
function commentMatch(expression: Expression): string {
  return expression.kind === 'match' && expression.name === COMMENT_MATCH ? cString(expression.info) : ''
}
