import { type ByteView, ByteWriter } from '../../netlink/bytes.ts'
import { octets, u32host } from '../../netlink/codec.ts'
import type { Connection } from '../../netlink/connection.ts'
import { NLM_F_DUMP, NLM_F_REQUEST } from '../../netlink/constants.ts'
import { NetlinkError } from '../../netlink/errors.ts'
import { closeMessage, type Message, openMessage } from '../../netlink/message.ts'
import { attributeSet, readAttributes } from '../../netlink/schema.ts'
import { INET_DIAG_NOCOOKIE, SOCK_DIAG_BY_FAMILY, TCPF_LISTEN } from './constants.ts'

/** linux/sock_diag.h and linux/unix_diag.h, under the headers' own names. */
const AF_UNIX = 1
const UDIAG_SHOW_NAME = 0x01
const UDIAG_SHOW_UID = 0x40
/** Of struct unix_diag_msg. */
const UNIX_DIAG_MSG_LENGTH = 16

/** linux/unix_diag.h: UNIX_DIAG_NAME and UNIX_DIAG_UID (Linux 5.3). */
const UNIX_SOCKET = attributeSet({ name: [0, octets], uid: [7, u32host] })

/**
 * User ids of those who listen at an abstract name (without its first NUL) in this network namespace, whether or not their
 * runtime padded it with NULs to 108 octets. Undefined where the kernel has no unix_diag. Over a connection of
 * NETLINK_SOCK_DIAG. Throws what dump throws.
 */
export async function abstractListeners(
  connection: Connection,
  name: string,
): Promise<readonly number[] | undefined> {
  const wanted = `\0${name}`
  const uids: (number | undefined)[] = []
  try {
    await connection.dump({
      operation: 'list',
      object: 'unix sockets',
      build: encodeQuery,
      onMessage(view, message) {
        const socket = readSocket(view, message)
        if (socket?.name?.replace(/\0+$/, '') === wanted) uids.push(socket.uid)
      },
    })
  } catch (error) {
    if (error instanceof NetlinkError && error.code === 'ENOENT') return undefined
    throw error
  }
  const known = uids.filter(uid => uid !== undefined)
  return known.length === uids.length ? known : undefined
}

function encodeQuery(sequence: number): Uint8Array {
  const out = new ByteWriter(64)
  const start = openMessage(out, { type: SOCK_DIAG_BY_FAMILY, flags: NLM_F_REQUEST | NLM_F_DUMP, sequence })
  // struct unix_diag_req.
  out.u8(AF_UNIX)
  out.u8(0)
  out.u16(0)
  for (const word of [
    TCPF_LISTEN,
    0,
    UDIAG_SHOW_NAME | UDIAG_SHOW_UID,
    INET_DIAG_NOCOOKIE,
    INET_DIAG_NOCOOKIE,
  ])
    out.u32(word)
  closeMessage(out, start)
  return out.written()
}

function readSocket(view: ByteView, { type, start, end }: Message) {
  if (type !== SOCK_DIAG_BY_FAMILY) return undefined
  return readAttributes(view, UNIX_SOCKET, { start: start + UNIX_DIAG_MSG_LENGTH, end })
}
