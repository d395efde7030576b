import type { ByteView } from '../../netlink/bytes.ts'
import type { Connection } from '../../netlink/connection.ts'
import { NLM_F_DUMP } from '../../netlink/constants.ts'
import { type Message, readNfGenMsg } from '../../netlink/message.ts'
import { NFPROTO_UNSPEC, NFT_MSG_GETCHAIN } from './constants.ts'
import { decodeChain } from './decode.ts'
import { getRequest } from './get-request.ts'
import type { Chain } from './state.ts'

/** A chain of any program. */
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
        getRequest({ type: NFT_MSG_GETCHAIN, flags: NLM_F_DUMP, family: NFPROTO_UNSPEC, sequence }),
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

function familyName(view: ByteView, message: Message): string {
  const { family } = readNfGenMsg(view, message)
  return FAMILY_NAMES[family] ?? String(family)
}
