import type { ByteView } from '../../netlink/attribute.ts'
import { string, u32be, u64be } from '../../netlink/codecs.ts'
import { Connection, type ConnectionOptions } from '../../netlink/connection.ts'
import { NLM_F_ACK, NLM_F_CREATE, NLM_F_REQUEST } from '../../netlink/constants.ts'
import { malformed, NetlinkError, OutcomeUnknownError, unencodable } from '../../netlink/errors.ts'
import { encodeMessage, type Message, nfSpan, writeNfGenMsg } from '../../netlink/message.ts'
import { attributeSet, readAttributes, writeAttributes } from '../../netlink/schema.ts'
import { NFACCT_NAME_MAX } from '../xt/rule.ts'

/** linux/netfilter/nfnetlink_acct.h and nfnetlink.h, under the headers' own names. */

export const NFNL_SUBSYS_ACCT = 7

export const NFNL_MSG_ACCT_NEW = 0
export const NFNL_MSG_ACCT_GET = 1
export const NFNL_MSG_ACCT_GET_CTRZERO = 2
export const NFNL_MSG_ACCT_DEL = 3

const NFACCT_NAME = 1
const NFACCT_PKTS = 2
const NFACCT_BYTES = 3
const NFACCT_USE = 4

/** The attributes of a counter, as linux/netfilter/nfnetlink_acct.h describes them. */
export const ACCOUNT = attributeSet({
  name: [NFACCT_NAME, string],
  packets: [NFACCT_PKTS, u64be],
  bytes: [NFACCT_BYTES, u64be],
  /** Number of rules that use it, plus one for its existence. */
  use: [NFACCT_USE, u32be],
})

/** The errors of nfnetlink without the subsystem. */
const ABSENT: ReadonlySet<string> = new Set(['EINVAL', 'EOPNOTSUPP', 'EPROTONOSUPPORT'])
const THERE: ReadonlySet<string> = new Set(['EEXIST', 'EBUSY'])
const GONE: ReadonlySet<string> = new Set(['ENOENT', ...ABSENT])

/** A client for the named counters of iptables rules (`-m nfacct`): nfnetlink subsystem NFNL_SUBSYS_ACCT. */
export class NfacctClient {
  readonly #connection: Connection

  constructor(options: ConnectionOptions) {
    this.#connection = new Connection(options)
  }

  /**
   * Creates the counter if necessary; an existing one keeps its counts. Returns false where the kernel has no such
   * counters. Throws NetlinkError: EPERM, ENOMEM.
   */
  ensure(name: string): boolean {
    const error = this.#ask('create', { message: NFNL_MSG_ACCT_NEW, flags: NLM_F_CREATE | NLM_F_ACK, name })
    if (error === undefined || THERE.has(error.code)) return true
    if (ABSENT.has(error.code)) return false
    throw error
  }

  /** Reads a counter; undefined when it does not exist, or the kernel has no counters. Throws NetlinkError. */
  read(name: string): AccountCounts | undefined {
    let counts: AccountCounts | undefined
    const error = this.#ask('read', { message: NFNL_MSG_ACCT_GET, flags: 0, name }, found => {
      counts = { packets: found.packets, bytes: found.bytes }
    })
    if (error !== undefined && !GONE.has(error.code)) throw error
    return counts
  }

  /** Deletes a counter. Returns false if a rule uses it: it stays. Throws NetlinkError. */
  delete(name: string): boolean {
    const error = this.#ask('delete', { message: NFNL_MSG_ACCT_DEL, flags: NLM_F_ACK, name })
    if (error === undefined || GONE.has(error.code)) return true
    if (error.code === 'EBUSY') return false
    throw error
  }

  async close(): Promise<void> {
    await this.#connection.close()
  }

  /** Sends a request and returns the kernel's error; throws any other failure. */
  #ask(
    operation: string,
    request: Parameters<typeof encodeAccount>[0],
    found?: (counts: AccountCounts) => void,
  ): NetlinkError | undefined {
    try {
      this.#connection.roundTrip({
        operation,
        object: `counter ${request.name} of nfacct`,
        build: sequence => encodeAccount(request, sequence),
        onMessage: (view, message) => found?.(decodeAccount(view, message)),
      })
      return undefined
    } catch (error) {
      if (error instanceof NetlinkError && !(error instanceof OutcomeUnknownError)) return error
      throw error
    }
  }
}

/** The counts since the counter was created or reset. */
export interface AccountCounts {
  readonly packets: bigint
  readonly bytes: bigint
}

/** Encodes a request; `message` is NFNL_MSG_ACCT_*. Without a name it would apply to all counters of the namespace. */
export function encodeAccount(
  { message, flags, name }: { readonly message: number; readonly flags: number; readonly name: string },
  sequence: number,
): Uint8Array {
  const length = Buffer.byteLength(name)
  if (length === 0 || length >= NFACCT_NAME_MAX) throw unencodable(`a counter of nfacct named ${name}`)
  const type = (NFNL_SUBSYS_ACCT << 8) | message
  return encodeMessage({ type, flags: NLM_F_REQUEST | flags, sequence }, out => {
    writeNfGenMsg(out.out, { family: 0, resourceId: 0 })
    writeAttributes(out, ACCOUNT, { name })
  })
}

/** Decodes a counter. Throws NetlinkError for another message. */
export function decodeAccount(view: ByteView, message: Message): AccountCounts & { readonly name: string } {
  const { name, packets, bytes } = readAttributes(view, ACCOUNT, nfSpan(message))
  if (name === undefined || packets === undefined || bytes === undefined)
    throw malformed('a counter of nfacct without its name or counts', message.start)
  return { name, packets, bytes }
}
