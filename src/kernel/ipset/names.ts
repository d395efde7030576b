import { AttributeWriter } from '../../netlink/attribute.ts'
import { type ByteView, ByteWriter } from '../../netlink/bytes.ts'
import { string, u8, u32be } from '../../netlink/codec.ts'
import type { Connection } from '../../netlink/connection.ts'
import { NLM_F_DUMP, NLM_F_REQUEST } from '../../netlink/constants.ts'
import { NetlinkError } from '../../netlink/errors.ts'
import {
  closeMessage,
  type Message,
  NFGENMSG_LENGTH,
  openMessage,
  writeNfGenMsg,
} from '../../netlink/message.ts'
import { attributeSet, readAttributes, writeAttributes } from '../../netlink/schema.ts'

/** linux/netfilter/nfnetlink.h and linux/netfilter/ipset/ip_set.h. */
const NFNL_SUBSYS_IPSET = 6
const IPSET_CMD_LIST = 7
const IPSET_PROTOCOL_MIN = 6
const IPSET_FLAG_LIST_SETNAME = 2

const SET = attributeSet({
  protocol: [1, u8],
  name: [2, string],
  flags: [6, u32be],
})

/** Errors of a kernel that has no ipsets. */
const ABSENT: ReadonlySet<string> = new Set(['EINVAL', 'EOPNOTSUPP', 'ENOENT'])

/** Names of the ipsets of this network namespace; none where the kernel has no such thing. Throws NetlinkError. */
export async function listIpsetNames(connection: Connection): Promise<readonly string[]> {
  const names = new Set<string>()
  try {
    await connection.dump({
      operation: 'list',
      object: 'names of ipsets',
      build: listRequest,
      onMessage: (view, message) => names.add(decodeName(view, message)),
    })
  } catch (error) {
    if (!(error instanceof NetlinkError) || !ABSENT.has(error.code)) throw error
  }
  names.delete('')
  return [...names]
}

/** IPSET_CMD_LIST for the names alone: one short message a set. */
export function listRequest(sequence: number): Uint8Array {
  const out = new ByteWriter(64)
  const type = (NFNL_SUBSYS_IPSET << 8) | IPSET_CMD_LIST
  const start = openMessage(out, { type, flags: NLM_F_REQUEST | NLM_F_DUMP, sequence })
  writeNfGenMsg(out, { family: 0, resourceId: 0 })
  writeAttributes(new AttributeWriter(out), SET, {
    protocol: IPSET_PROTOCOL_MIN,
    flags: IPSET_FLAG_LIST_SETNAME,
  })
  closeMessage(out, start)
  return out.written()
}

function decodeName(view: ByteView, message: Message): string {
  return readAttributes(view, SET, { start: message.start + NFGENMSG_LENGTH, end: message.end }).name ?? ''
}
