import { type PacketHead, readPacketHead } from '../../base/ip-packet.ts'
import type { ByteView } from '../../netlink/attribute.ts'
import { watchGroups } from '../../netlink/batch.ts'
import {
  NFNL_SUBSYS_NFTABLES,
  NFNLGRP_NFTABLES,
  NFNLGRP_NFTRACE,
  NLMSG_MIN_TYPE,
  NLMSG_OVERRUN,
} from '../../netlink/constants.ts'
import { malformed } from '../../netlink/errors.ts'
import { type Message, nfSpan, readNfGenMsg } from '../../netlink/message.ts'
import { readAttributes } from '../../netlink/schema.ts'
import type { Transport } from '../../netlink/transport.ts'
import * as nft from './constants.ts'
import { decodeChain, decodeGeneration, decodeRulePlace, decodeTableName } from './decode.ts'
import { TRACE } from './schema.ts'
import type { Verdict } from './state.ts'
import { decodeForeignRule, familyName } from './survey.ts'

/** A commit by another program, as the kernel announced it. */
export interface ForeignCommit {
  /** Id in the initial PID namespace; the process itself may see another id. */
  readonly processId: number | undefined
  readonly processName: string | undefined
  /** The tables that it changed, without duplicates: `ip kube-proxy`. */
  readonly tables: readonly string[]
  /** `concerns` returned true for a part of it. */
  readonly concerned: boolean
  /** False when the list may be incomplete: too many tables, or lost notifications. */
  readonly complete: boolean
  readonly generation: number
}

export interface Touched {
  /** `ip`, `ip6`, or `family 1`. */
  readonly family: string
  readonly table: string
  /** Name of the chain, or of the rule's chain. */
  readonly chain: string | undefined
  readonly handle: bigint | undefined
  /** Chains that a rule leads to, or led to. */
  readonly targets: () => readonly string[]
}

export interface ForeignCommitsOptions {
  /** A dedicated socket: notifications would fill the queue of any other. */
  readonly transport: Transport
  /** Port ids of the sockets of our own commits. */
  readonly ownPortIds: ReadonlySet<number>
  readonly onCommit: (commit: ForeignCommit) => void
  /** Called for each change by another program, until it returns true for the commit. */
  readonly concerns?: (touched: Touched) => boolean
  /** Called when notifications were lost or unreadable; commits at that time may be unknown or incomplete. */
  readonly onOverrun: (error: Error) => void
}

export interface ForeignCommits {
  /** Leaves the group. The socket stays open. */
  stop(): void
}

const MESSAGES_PER_TURN = 1_024
/** Maximum tables listed per commit; `nft flush ruleset` on a busy node may change more. */
const TABLES_MAX = 32

/**
 * Watches commits of other programs (NFNLGRP_NFTABLES). The kernel copies every element of every commit on the node
 * for each listener, so use it to find a program that does damage, and turn it off afterwards.
 */
export function watchForeignCommits(options: ForeignCommitsOptions): ForeignCommits {
  const { transport, onOverrun } = options
  const commits = new CommitCollector(options)
  const stop = watchGroups({
    transport,
    groups: [NFNLGRP_NFTABLES],
    messagesPerTurn: MESSAGES_PER_TURN,
    take: (view, message) => commits.take(view, message),
    lost(error) {
      commits.lost()
      onOverrun(error)
    },
    turned(isDrained) {
      if (isDrained) commits.drained()
    },
  })
  return { stop }
}

/** Collects the notifications of a commit. The kernel announces the changes first, and then the new generation. */
class CommitCollector {
  readonly #options: ForeignCommitsOptions
  readonly #tables = new Set<string>()
  #more = false
  #concerned = false
  /**
   * Notifications were lost. `ahead`: the gap is behind notifications that are still queued, because the kernel drops
   * until the queue is empty. `here`: the gap is in the current commit, whose rest may still arrive.
   */
  #gap: 'ahead' | 'here' | undefined

  constructor(options: ForeignCommitsOptions) {
    this.#options = options
  }

  lost(): void {
    this.#forget()
    this.#gap = 'ahead'
  }

  drained(): void {
    if (this.#gap === 'ahead') this.#gap = 'here'
  }

  #forget(): void {
    this.#tables.clear()
    this.#more = false
    this.#concerned = false
  }

  take(view: ByteView, message: Message): void {
    if (message.type === NLMSG_OVERRUN) throw malformed('an overrun', message.start)
    if (message.type < NLMSG_MIN_TYPE || message.type >> 8 !== NFNL_SUBSYS_NFTABLES) return
    if ((message.type & 0xff) === nft.NFT_MSG_NEWGEN) this.#generation(view, message)
    else this.#touched(touchedBy(view, message), message.portId)
  }

  #touched(touched: Touched, portId: number): void {
    const { concerns, ownPortIds } = this.#options
    if (!this.#concerned && !ownPortIds.has(portId)) this.#concerned = concerns?.(touched) === true
    const table = `${touched.family} ${touched.table}`
    if (this.#tables.size < TABLES_MAX) this.#tables.add(table)
    else this.#more ||= !this.#tables.has(table)
  }

  #generation(view: ByteView, message: Message): void {
    const tables = [...this.#tables]
    const concerned = this.#concerned
    const complete = !this.#more && this.#gap === undefined
    this.#forget()
    if (this.#gap === 'here') this.#gap = undefined
    if (this.#options.ownPortIds.has(message.portId)) return
    const { id, processId, processName } = decodeGeneration(view, message)
    this.#options.onCommit({ processId, processName, tables, concerned, complete, generation: id })
  }
}

function touchedBy(view: ByteView, message: Message): Touched {
  const family = familyOfTable(readNfGenMsg(view, message).family)
  const place = { family, table: decodeTableName(view, message), handle: undefined, targets: () => [] }
  switch (message.type & 0xff) {
    case nft.NFT_MSG_NEWRULE:
    case nft.NFT_MSG_DELRULE: {
      const { chain, handle } = decodeRulePlace(view, message)
      return { ...place, chain, handle, targets: () => decodeForeignRule(view, message).rule.targets }
    }
    case nft.NFT_MSG_NEWCHAIN:
    case nft.NFT_MSG_DELCHAIN:
      return { ...place, chain: decodeChain(view, message).value.name }
    default:
      return { ...place, chain: undefined }
  }
}

function familyOfTable(family: number): string {
  if (family === nft.NFPROTO_IPV4) return 'ip'
  return family === nft.NFPROTO_IPV6 ? 'ip6' : `family ${family}`
}

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
  readonly handle: bigint | undefined
  /** The verdict of the rule or the policy; undefined where the kernel names none. */
  readonly verdict: Verdict | undefined
  /** The packet as it is at this step; only the first step of each base chain has it. */
  readonly head: PacketHead | undefined
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

const STEPS_PER_TURN = 64

/** Receives the steps of all traced packets of this network namespace, until the returned function is called. */
export function watchPacketTrace({ transport, onEvent, onLost }: TraceOptions): () => void {
  return watchGroups({
    transport,
    groups: [NFNLGRP_NFTRACE],
    messagesPerTurn: STEPS_PER_TURN,
    take(view, message) {
      const event = decodeTrace(view, message)
      if (event !== undefined) onEvent(event)
    },
    lost: onLost,
  })
}

const TRACE_MESSAGE = (NFNL_SUBSYS_NFTABLES << 8) | nft.NFT_MSG_TRACE

/** Decodes NFT_MSG_TRACE; undefined for other messages. Throws NetlinkError for a step without table, chain or id. */
function decodeTrace(view: ByteView, message: Message): TraceEvent | undefined {
  if (message.type === NLMSG_OVERRUN) throw malformed('an overrun', message.start)
  if (message.type !== TRACE_MESSAGE) return undefined
  const step = readAttributes(view, TRACE, nfSpan(message))
  const { table, chain, id, policy, network } = step
  // The kernel reports the end of a chain as a rule without a handle.
  const type =
    step.type === nft.NFT_TRACETYPE_RULE && step.handle === undefined ? 'return' : typeOf(step.type)
  if (table === undefined || chain === undefined || id === undefined)
    throw malformed('a step of a packet without its table, chain or id', message.start)
  if (type === undefined) return undefined
  const { code = policy, chain: target } = step.verdict ?? {}
  return {
    id,
    family: familyName(view, message),
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
    case nft.NFT_TRACETYPE_RULE:
      return 'rule'
    case nft.NFT_TRACETYPE_RETURN:
      return 'return'
    case nft.NFT_TRACETYPE_POLICY:
      return 'policy'
    default:
      return undefined
  }
}
