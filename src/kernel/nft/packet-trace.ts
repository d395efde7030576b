import { type PacketHead, readPacketHead } from '../../base/ip.ts'
import type { ByteView } from '../../netlink/attribute.ts'
import { watchGroups } from '../../netlink/batch.ts'
import { NFNL_SUBSYS_NFTABLES, NFNLGRP_NFTRACE, NLMSG_OVERRUN } from '../../netlink/constants.ts'
import { malformed } from '../../netlink/errors.ts'
import { type Message, nfSpan, readNfGenMsg } from '../../netlink/message.ts'
import { readAttributes } from '../../netlink/schema.ts'
import type { Transport } from '../../netlink/transport.ts'
import { NFT_MSG_TRACE, NFT_TRACETYPE_POLICY, NFT_TRACETYPE_RETURN, NFT_TRACETYPE_RULE } from './constants.ts'
import type { Verdict } from './expression.ts'
import { TRACE } from './schema.ts'
import { FAMILY_NAMES } from './survey.ts'

/** One step of a real packet whose trace bit is set (`meta nftrace set 1`), as the kernel reports it. */
export interface TraceEvent {
  /** The kernel's number for the packet; packets that follow each other may have the same. */
  readonly id: number
  /** The family of the table: ip, ip6, inet, bridge, arp, netdev; a number for any other. */
  readonly family: string
  readonly table: string
  readonly chain: string
  /** `return` stands for the end of a chain as well. */
  readonly type: 'rule' | 'return' | 'policy'
  /** The rule's handle; undefined for other steps. */
  readonly handle: bigint | undefined
  /** The verdict of the rule or the policy; undefined where the kernel names none. */
  readonly verdict: Verdict | undefined
  /** The packet as it is at this step; only the first step of each base chain has it. */
  readonly head: PacketHead | undefined
  /** Indexes of the interfaces. */
  readonly inputInterface: number | undefined
  readonly outputInterface: number | undefined
}

interface TraceOptions {
  /** A dedicated socket: steps would fill the queue of any other. */
  readonly transport: Transport
  readonly onEvent: (event: TraceEvent) => void
  /** Called when the kernel dropped steps because the queue was full, and for a message that cannot be read. */
  readonly onLost: (error: Error) => void
}

/** Several steps come in one datagram; none is longer than a page. */
const RECEIVE_BYTES = 64 * 1024
const MESSAGES_PER_TURN = 64

/** Receives the steps of all traced packets of this network namespace, until the returned function is called. */
export function watchPacketTrace({ transport, onEvent, onLost }: TraceOptions): () => void {
  return watchGroups({
    transport,
    groups: [NFNLGRP_NFTRACE],
    datagramBytes: RECEIVE_BYTES,
    messagesPerTurn: MESSAGES_PER_TURN,
    take(view, message) {
      const event = decodeTrace(view, message)
      if (event !== undefined) onEvent(event)
    },
    lost: onLost,
  })
}

const TRACE_MESSAGE = (NFNL_SUBSYS_NFTABLES << 8) | NFT_MSG_TRACE

/** Decodes NFT_MSG_TRACE; undefined for other messages. Throws NetlinkError for a step without table, chain or id. */
function decodeTrace(view: ByteView, message: Message): TraceEvent | undefined {
  if (message.type === NLMSG_OVERRUN) throw malformed('an overrun', message.start)
  if (message.type !== TRACE_MESSAGE) return undefined
  const step = readAttributes(view, TRACE, nfSpan(message))
  const { table, chain, id, policy, network } = step
  // The kernel reports the end of a chain as a rule without a handle.
  const type = step.type === NFT_TRACETYPE_RULE && step.handle === undefined ? 'return' : typeOf(step.type)
  if (table === undefined || chain === undefined || id === undefined)
    throw malformed('a step of a packet without its table, chain or id', message.start)
  if (type === undefined) return undefined
  const { family } = readNfGenMsg(view, message)
  const { code = policy, chain: target } = step.verdict ?? {}
  return {
    id,
    family: FAMILY_NAMES[family] ?? String(family),
    table,
    chain,
    type,
    handle: type === 'rule' ? step.handle : undefined,
    verdict: code === undefined ? undefined : { code, chain: target },
    head: network === undefined ? undefined : readPacketHead(network, step.transport ?? ''),
    inputInterface: step.inputInterface,
    outputInterface: step.outputInterface,
  }
}

function typeOf(number: number | undefined): TraceEvent['type'] | undefined {
  switch (number) {
    case NFT_TRACETYPE_RULE:
      return 'rule'
    case NFT_TRACETYPE_RETURN:
      return 'return'
    case NFT_TRACETYPE_POLICY:
      return 'policy'
    default:
      return undefined
  }
}
