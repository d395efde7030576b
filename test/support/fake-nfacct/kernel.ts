import {
  ACCOUNT,
  NFNL_MSG_ACCT_DEL,
  NFNL_MSG_ACCT_GET,
  NFNL_MSG_ACCT_GET_CTRZERO,
  NFNL_MSG_ACCT_NEW,
  NFNL_SUBSYS_ACCT,
} from '../../../src/kernel/nfacct/client.ts'
import { AttributeWriter, ByteWriter } from '../../../src/netlink/attribute.ts'
import { NLM_F_EXCL } from '../../../src/netlink/constants.ts'
import {
  closeMessage,
  type Message,
  NFGENMSG_LENGTH,
  openMessage,
  writeNfGenMsg,
} from '../../../src/netlink/message.ts'
import { readAttributes, writeAttributes } from '../../../src/netlink/schema.ts'
import { refuse } from '../fake-kernel/call.ts'
import { answerEach, FakeSocket, type SocketOptions } from '../fake-kernel/socket.ts'

interface Account {
  packets: bigint
  bytes: bigint
  /** Rules that count with it. */
  rules: number
}

/**
 * The counters of nfacct in memory, spoken to in bytes: net/netfilter/nfnetlink_acct.c. What it refuses and how is held
 * against a real kernel by test/contract/nfacct-suite.ts.
 */
export class FakeNfacct {
  readonly accounts = new Map<string, Account>()
  /** False for a kernel without them. */
  readonly supported: boolean
  #ports = 3000

  constructor({ supported = true }: { readonly supported?: boolean } = {}) {
    this.supported = supported
  }

  open(options: SocketOptions = {}): FakeSocket {
    return new FakeSocket(this, ++this.#ports, options)
  }

  forget(): void {
    // A socket leaves nothing behind.
  }

  accept(datagram: Uint8Array, from: FakeSocket): void {
    answerEach(datagram, from, ({ view, message }) => {
      if (!this.supported || message.type >> 8 !== NFNL_SUBSYS_ACCT) refuse('EINVAL')
      const span = { start: message.start + NFGENMSG_LENGTH, end: message.end }
      this.#request(message, readAttributes(view, ACCOUNT, span).name ?? refuse('EINVAL'), from)
    })
  }

  #request(message: Message, name: string, from: FakeSocket): void {
    const kind = message.type & 0xff
    const known = this.accounts.get(name)
    if (kind === NFNL_MSG_ACCT_NEW) {
      if (known !== undefined) refuse((message.flags & NLM_F_EXCL) === 0 ? 'EBUSY' : 'EEXIST')
      this.accounts.set(name, { packets: 0n, bytes: 0n, rules: 0 })
      return
    }
    const account = known ?? refuse('ENOENT')
    if (kind === NFNL_MSG_ACCT_DEL) {
      if (account.rules > 0) refuse('EBUSY')
      this.accounts.delete(name)
      return
    }
    if (kind !== NFNL_MSG_ACCT_GET && kind !== NFNL_MSG_ACCT_GET_CTRZERO) refuse('EINVAL')
    from.enqueue(accountMessage({ name, ...account }, { sequence: message.sequence, portId: from.portId }))
    if (kind === NFNL_MSG_ACCT_GET_CTRZERO) Object.assign(account, { packets: 0n, bytes: 0n })
  }
}

function accountMessage(
  { name, packets, bytes, rules }: Account & { readonly name: string },
  asked: { readonly sequence: number; readonly portId: number },
): Uint8Array {
  const out = new ByteWriter(96)
  const type = (NFNL_SUBSYS_ACCT << 8) | NFNL_MSG_ACCT_NEW
  const start = openMessage(out, { type, flags: 0, sequence: asked.sequence })
  out.patchU32(start + 12, asked.portId)
  writeNfGenMsg(out, { family: 0, resourceId: 0 })
  writeAttributes(new AttributeWriter(out), ACCOUNT, { name, packets, bytes, use: rules + 1 })
  closeMessage(out, start)
  return out.written()
}
