import { type ByteView, viewOf } from '../../netlink/bytes.ts'
import {
  NFNL_SUBSYS_NFTABLES,
  NFNLGRP_NFTABLES,
  NLMSG_MIN_TYPE,
  NLMSG_OVERRUN,
} from '../../netlink/constants.ts'
import { malformed, NetlinkError } from '../../netlink/errors.ts'
import { type Message, readMessages, readNfGenMsg } from '../../netlink/message.ts'
import { SystemError, type Transport } from '../../netlink/transport.ts'
import {
  NFPROTO_IPV4,
  NFPROTO_IPV6,
  NFT_MSG_DELCHAIN,
  NFT_MSG_DELRULE,
  NFT_MSG_NEWCHAIN,
  NFT_MSG_NEWGEN,
  NFT_MSG_NEWRULE,
} from './constants.ts'
import { decodeChain, decodeGeneration, decodeRulePlace, decodeTableName } from './decode.ts'
import { decodeForeignRule } from './leftover-survey.ts'

/** A commit by somebody else, as the kernel announced it. */
export interface ForeignCommit {
  /** In the first process namespace, so that it may not be what the process itself calls its id. */
  readonly processId: number | undefined
  readonly processName: string | undefined
  /** What it touched, each once: `ip kube-proxy`. */
  readonly tables: readonly string[]
  /** Some of it is what `concerns` asks for. */
  readonly concerned: boolean
  /** False when it may have touched more: there were too many, or some notifications were lost. */
  readonly complete: boolean
  readonly generation: number
}

/** What one notification is about. */
export interface Touched {
  /** `ip`, `ip6`, or `family 1`. */
  readonly family: string
  readonly table: string
  /** Of a chain, or of the rule's chain. */
  readonly chain: string | undefined
  /** Of a rule. */
  readonly handle: bigint | undefined
  /** Chains that a rule leads to, or led to. */
  readonly targets: () => readonly string[]
}

export interface ForeignCommitsOptions {
  /** A socket for this alone: notifications would fill the queue of any other. */
  readonly transport: Transport
  /** Port ids of the sockets whose commits are our own. */
  readonly ownPortIds: ReadonlySet<number>
  readonly onCommit: (commit: ForeignCommit) => void
  /** Asked of what others' commits touch, until it says yes. */
  readonly concerns?: (touched: Touched) => boolean
  /** Some notifications were lost or unreadable: of commits at that time not everything is known, if anything is. */
  readonly onOverrun: (error: Error) => void
}

export interface ForeignCommits {
  /** Leaves the group. The socket stays open. */
  stop(): void
}

/** Dumps do not come here; notifications fit into a page or two, several in one datagram. */
const RECEIVE_BYTES = 128 * 1024
/** Datagrams handled before the event loop has its turn; what is left makes the socket readable again. */
const DATAGRAMS_PER_TURN = 64
/** Tables named of one commit; `nft flush ruleset` on a busy node may touch more. */
const TABLES_MAX = 32

/**
 * Listens to NFNLGRP_NFTABLES. Every element of every commit on the node is copied for each listener, so this is for
 * finding out who does damage, and not to be left on.
 */
export function watchForeignCommits(options: ForeignCommitsOptions): ForeignCommits {
  const { transport, onOverrun } = options
  const buffer = new Uint8Array(RECEIVE_BYTES)
  const commits = new CommitCollector(options)
  transport.join(NFNLGRP_NFTABLES)
  const unwatch = transport.watch(() => {
    for (let count = 0; count < DATAGRAMS_PER_TURN; count++) {
      try {
        const length = transport.receive(buffer)
        if (length === undefined) return commits.drained()
        commits.datagram(viewOf(buffer.subarray(0, length)))
      } catch (error) {
        if (!(error instanceof SystemError) && !(error instanceof NetlinkError)) throw error
        commits.lost()
        onOverrun(error)
      }
    }
  })
  let listening = true
  return {
    stop() {
      if (!listening) return
      listening = false
      unwatch()
      transport.leave(NFNLGRP_NFTABLES)
    },
  }
}

/** The kernel announces what a commit changed, and then the new generation. */
class CommitCollector {
  readonly #options: ForeignCommitsOptions
  readonly #tables = new Set<string>()
  #more = false
  #concerned = false
  /**
   * Something was lost: `ahead`, behind notifications that are still queued, since the kernel drops until the queue is
   * empty; then `here`, in a commit whose rest may come.
   */
  #gap: 'ahead' | 'here' | undefined

  constructor(options: ForeignCommitsOptions) {
    this.#options = options
  }

  datagram(view: ByteView): void {
    for (const message of readMessages(view)) this.#message(view, message)
  }

  lost(): void {
    this.#forget()
    this.#gap = 'ahead'
  }

  /** Nothing is queued any more. */
  drained(): void {
    if (this.#gap === 'ahead') this.#gap = 'here'
  }

  #forget(): void {
    this.#tables.clear()
    this.#more = false
    this.#concerned = false
  }

  #message(view: ByteView, message: Message): void {
    if (message.type === NLMSG_OVERRUN) throw malformed('an overrun', message.start)
    if (message.type < NLMSG_MIN_TYPE || message.type >> 8 !== NFNL_SUBSYS_NFTABLES) return
    if ((message.type & 0xff) === NFT_MSG_NEWGEN) this.#generation(view, message)
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
  const family = familyName(readNfGenMsg(view, message).family)
  const place = { family, table: decodeTableName(view, message), handle: undefined, targets: () => [] }
  switch (message.type & 0xff) {
    case NFT_MSG_NEWRULE:
    case NFT_MSG_DELRULE: {
      const { chain, handle } = decodeRulePlace(view, message)
      return { ...place, chain, handle, targets: () => decodeForeignRule(view, message).rule.targets }
    }
    case NFT_MSG_NEWCHAIN:
    case NFT_MSG_DELCHAIN:
      return { ...place, chain: decodeChain(view, message).value.name }
    default:
      return { ...place, chain: undefined }
  }
}

function familyName(family: number): string {
  if (family === NFPROTO_IPV4) return 'ip'
  return family === NFPROTO_IPV6 ? 'ip6' : `family ${family}`
}
