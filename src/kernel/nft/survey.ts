import type { ByteView } from '../../netlink/bytes.ts'
import type { Connection } from '../../netlink/connection.ts'
import { NLM_F_DUMP } from '../../netlink/constants.ts'
import { type Message, readNfGenMsg } from '../../netlink/message.ts'
import { writeAttributes } from '../../netlink/schema.ts'
import * as nft from './constants.ts'
import { decodeChain, decodeRule } from './decode.ts'
import type { Rule } from './expression.ts'
import { getRequest } from './get-request.ts'
import { TABLE_MEMBER } from './schema.ts'
import type { Chain } from './state.ts'

/** A chain of any program. */
export interface SurveyedChain {
  /** nft's name: ip, ip6, inet, bridge, arp, netdev; a number for any other family. */
  readonly family: string
  readonly table: string
  readonly chain: Chain
}

/** A rule of any program, with the parts that kprobe can read. */
interface SurveyedRule {
  readonly family: string
  readonly table: string
  readonly chain: string
  readonly rule: Rule
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
    const whole = await dump(connection, { type: nft.NFT_MSG_GETCHAIN, what: 'chains' }, (view, message) => {
      const { table, value } = decodeChain(view, message)
      chains.push({ family: familyName(view, message), table, chain: value })
    })
    return { chains, whole }
  }
  const first = await read()
  return first.whole ? first.chains : (await read()).chains
}

/** Lists the rules of one table; none when it does not exist. */
export async function surveyRules(
  connection: Connection,
  table: { readonly family: number; readonly name: string },
): Promise<readonly SurveyedRule[]> {
  const rules: SurveyedRule[] = []
  const request = { type: nft.NFT_MSG_GETRULE, what: `rules of table ${table.name}`, table }
  await dump(connection, request, (view, message) => {
    const { table: name, chain, value } = decodeRule(view, message)
    rules.push({ family: familyName(view, message), table: name, chain, rule: value })
  })
  return rules
}

interface DumpRequest {
  readonly type: number
  readonly what: string
  readonly table?: { readonly family: number; readonly name: string }
}

function dump(
  connection: Connection,
  { type, what, table }: DumpRequest,
  onMessage: (view: ByteView, message: Message) => void,
): Promise<boolean> {
  return connection.dump({
    operation: 'list',
    object: what,
    onMessage,
    build: sequence =>
      getRequest({ type, flags: NLM_F_DUMP, family: table?.family ?? nft.NFPROTO_UNSPEC, sequence }, out => {
        if (table !== undefined) writeAttributes(out, TABLE_MEMBER, { table: table.name })
      }),
  })
}

function familyName(view: ByteView, message: Message): string {
  const { family } = readNfGenMsg(view, message)
  return FAMILY_NAMES[family] ?? String(family)
}
