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
  NLM_F_DUMP,
  NLM_F_DUMP_INTR,
  NLM_F_MULTI,
  NLMSG_HDRLEN,
} from '../../../src/netlink/constants.ts'
import type { Message } from '../../../src/netlink/message.ts'
import { type BatchOutcome, runBatch } from './batch.ts'
import { type Call, familyIn, refuse } from './call.ts'
import { dumpOf, ruleByHandle } from './dump.ts'
import { Handles, Journal, type Namespace } from './objects.ts'
import { errorReply, messageOf, type ObjectHead, objectMessage } from './replies.ts'
import { type Asked, answerEach, FakeSocket, type SocketOptions } from './socket.ts'

interface FakeKernelOptions {
  /** Milliseconds, for elements with timeouts. */
  readonly nowMs?: () => number
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
  generation = 1
  /** Refusals to inject, tried in order. */
  readonly forced: ForcedRefusal[] = []
  readonly #sockets = new Set<FakeSocket>()
  #ports = 1000

  constructor({ nowMs = () => performance.now() }: FakeKernelOptions = {}) {
    this.space = {
      tables: new Map(),
      ipsets: new Map(),
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
    if (type === NFNL_MSG_BATCH_BEGIN) this.#finish(runBatch(this, view), from)
    else answerEach(datagram, from, asked => this.#request(asked))
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
      const { kind, family, asked, write } = notice()
      const message = messageOf(this.#head(kind, family, { sequence: asked.sequence, to: from }), write)
      for (const socket of listeners) socket.enqueue(message)
    }
    for (const socket of listeners) socket.enqueue(this.#generationMessage(0, from))
  }

  #head(
    message: number,
    family: number,
    {
      sequence,
      to,
      flags = 0,
    }: { readonly sequence: number; readonly to: FakeSocket; readonly flags?: number },
  ): ObjectHead {
    return { message, family, flags, sequence, portId: to.portId, generation: this.generation }
  }

  #generationMessage(sequence: number, to: FakeSocket): Uint8Array {
    const { processId, processName } = to
    return objectMessage(this.#head(NFT_MSG_NEWGEN, NFPROTO_UNSPEC, { sequence, to }), GENERATION, {
      id: this.generation,
      processId,
      processName,
    })
  }

  #request({ view, message, from: to }: Asked): 'answered' | undefined {
    if (message.type >> 8 !== NFNL_SUBSYS_NFTABLES) refuse('EINVAL')
    const kind = message.type & 255
    const { sequence } = message
    const family = familyIn(view, message)
    const call: Call = { space: this.space, journal: new Journal(), view, message, family }
    if (kind === NFT_MSG_GETGEN) to.enqueue(this.#generationMessage(sequence, to))
    else if ((message.flags & NLM_F_DUMP) === NLM_F_DUMP) {
      to.startDump(this.#dump(kind, call, to), sequence)
      return 'answered'
    } else if (kind === NFT_MSG_GETRULE)
      to.enqueue(ruleByHandle(call, this.#head(NFT_MSG_NEWRULE, family, { sequence, to })))
    else refuse('EINVAL')
    return undefined
  }

  /** Dumps of anything but elements say when the generation changed under them. */
  #dump(kind: number, call: Call, to: FakeSocket): Iterable<Uint8Array> {
    const began = this.generation
    return dumpOf(kind, call, (message, family) => {
      const torn = kind !== NFT_MSG_GETSETELEM && this.generation !== began
      const flags = NLM_F_MULTI | (torn ? NLM_F_DUMP_INTR : 0)
      return this.#head(message, family, { sequence: call.message.sequence, to, flags })
    })
  }
}
