import {
  NFPROTO_UNSPEC,
  NFT_MSG_GETGEN,
  NFT_MSG_GETRULE,
  NFT_MSG_GETSETELEM,
  NFT_MSG_NEWGEN,
  NFT_MSG_NEWRULE,
} from '../../../src/kernel/nft/constants.ts'
import { GENERATION } from '../../../src/kernel/nft/schema.ts'
import { viewOf } from '../../../src/netlink/attribute.ts'
import {
  NFNL_MSG_BATCH_BEGIN,
  NFNL_SUBSYS_NFTABLES,
  NFNLGRP_NFTABLES,
  NLM_F_ACK,
  NLM_F_DUMP,
  NLM_F_DUMP_INTR,
  NLM_F_MULTI,
  NLMSG_HDRLEN,
} from '../../../src/netlink/constants.ts'
import { errnoNumber } from '../../../src/netlink/errors.ts'
import { type Message, readMessages } from '../../../src/netlink/message.ts'
import { type BatchOutcome, runBatch } from './batch.ts'
import { type Call, familyIn } from './call.ts'
import { dumpOf, ruleByHandle } from './dump.ts'
import { Handles, Journal, type Namespace, type Notice, Refusal } from './objects.ts'
import { doneMessage, errorReply, messageOf, type ObjectHead, objectMessage } from './replies.ts'
import { FakeSocket, type SocketOptions } from './socket.ts'

interface FakeKernelOptions {
  /** Milliseconds, for elements with timeouts. */
  readonly nowMs?: () => number
  /** What Linux 6.1 does otherwise: see the members. */
  readonly old?: OldKernel
}

export interface OldKernel {
  /** A message of batch end that asks for an acknowledgement gets none. */
  readonly batchEndIsSilent?: boolean
  /** A chain cannot be deleted in the transaction that drops the last reference to it (EBUSY). */
  readonly referencesLinger?: boolean
}

/** A fault to inject: `errno` for messages that match, in place of what would happen. */
interface ForcedRefusal {
  readonly matches: (message: Message) => boolean
  readonly code: string
}

/**
 * nf_tables of one network namespace, in memory, spoken to in bytes: transactional, with references, generations, dumps
 * and notifications. What it refuses and how is what Linux 6.18 was seen to do; test/contract holds it against that.
 */
export class FakeKernel {
  readonly space: Namespace
  readonly old: OldKernel
  generation = 1
  /** Refusals to inject, tried in order. */
  readonly forced: ForcedRefusal[] = []
  readonly #sockets = new Set<FakeSocket>()
  #ports = 1000

  constructor({ nowMs = () => performance.now(), old = {} }: FakeKernelOptions = {}) {
    this.old = old
    this.space = {
      tables: new Map(),
      ipsets: new Map(),
      accounts: new Set(),
      absent: new Set(),
      nowMs,
      tableHandles: new Handles(),
    }
  }

  /** A socket of NETLINK_NETFILTER with NETLINK_CAP_ACK and NETLINK_EXT_ACK. */
  open(options: SocketOptions = {}): FakeSocket {
    const socket = new FakeSocket(this, ++this.#ports, options)
    this.#sockets.add(socket)
    return socket
  }

  forget(socket: FakeSocket): void {
    this.#sockets.delete(socket)
  }

  /** Used by sockets: the kernel works on a datagram while its sender waits. */
  accept(datagram: Uint8Array, from: FakeSocket): void {
    const view = viewOf(datagram)
    const type = datagram.length >= NLMSG_HDRLEN ? view.data.getUint16(4, true) : 0
    if (type === NFNL_MSG_BATCH_BEGIN) {
      this.#finish(runBatch(this, view), from)
      return
    }
    for (const message of readMessages(view)) this.#request({ view, message, from })
  }

  #finish(outcome: BatchOutcome, from: FakeSocket): void {
    if (outcome.committed) {
      this.generation = this.generation === 0xffff_ffff ? 1 : this.generation + 1
      this.#notify(outcome, from)
    }
    for (const { asked, verdict } of outcome.replies) from.enqueue(errorReply(asked, verdict, from.portId))
  }

  /** Every socket of the group hears what changed, and then of the new generation and who made it. */
  #notify({ notices }: BatchOutcome, from: FakeSocket): void {
    const listeners = [...this.#sockets].filter(({ groups }) => groups.has(NFNLGRP_NFTABLES))
    for (const notice of notices) {
      const message = this.#noticeMessage(notice(), from)
      for (const socket of listeners) socket.enqueue(message)
    }
    for (const socket of listeners) socket.enqueue(this.#generationMessage(0, from))
  }

  #noticeMessage({ kind, family, asked, body }: Notice, from: FakeSocket): Uint8Array {
    const { generation } = this
    const head = {
      message: kind,
      family,
      flags: 0,
      sequence: asked.sequence,
      portId: from.portId,
      generation,
    }
    return messageOf(head, body)
  }

  #generationMessage(sequence: number, to: FakeSocket): Uint8Array {
    const { generation } = this
    const head = {
      message: NFT_MSG_NEWGEN,
      family: NFPROTO_UNSPEC,
      flags: 0,
      sequence,
      portId: to.portId,
      generation,
    }
    return objectMessage(head, GENERATION, {
      id: generation,
      processId: to.processId,
      processName: to.processName,
    })
  }

  #request({
    view,
    message,
    from,
  }: {
    readonly view: Call['view']
    readonly message: Message
    readonly from: FakeSocket
  }): void {
    const asked = { ...message, length: message.end - message.start + NLMSG_HDRLEN }
    try {
      if (message.type >> 8 !== NFNL_SUBSYS_NFTABLES) throw new Refusal(errnoNumber('EINVAL'))
      const kind = message.type & 255
      const call: Call = {
        space: this.space,
        journal: new Journal(new Map()),
        view,
        message,
        family: familyIn(view, message),
      }
      if (kind === NFT_MSG_GETGEN) from.enqueue(this.#generationMessage(message.sequence, from))
      else if (kind === NFT_MSG_GETRULE && (message.flags & NLM_F_DUMP) !== NLM_F_DUMP)
        from.enqueue(ruleByHandle(call, this.#ruleHead(call, from)))
      else if ((message.flags & NLM_F_DUMP) === NLM_F_DUMP) {
        from.startDump(this.#dump(kind, call, from))
        return
      } else throw new Refusal(errnoNumber('EINVAL'))
      if ((message.flags & NLM_F_ACK) !== 0)
        from.enqueue(errorReply(asked, { errno: 0, offset: undefined }, from.portId))
    } catch (error) {
      if (!(error instanceof Refusal)) throw error
      from.enqueue(errorReply(asked, error, from.portId))
    }
  }

  #ruleHead({ family, message: { sequence } }: Call, { portId }: FakeSocket): ObjectHead {
    return { message: NFT_MSG_NEWRULE, family, flags: 0, sequence, portId, generation: this.generation }
  }

  /** Dumps of anything but elements say when the generation changed under them. */
  #dump(kind: number, call: Call, to: FakeSocket): IterableIterator<Uint8Array> {
    const began = this.generation
    const heads = (message: number, family: number) => {
      const torn = kind !== NFT_MSG_GETSETELEM && this.generation !== began
      const flags = NLM_F_MULTI | (torn ? NLM_F_DUMP_INTR : 0)
      const { generation } = this
      return { message, family, flags, sequence: call.message.sequence, portId: to.portId, generation }
    }
    const messages = dumpOf(kind, call, heads)
    return (function* () {
      yield* messages
      yield doneMessage(call.message.sequence, to.portId)
    })()
  }
}
