import { octets, u32host } from '../../netlink/codec.ts'
import type { Connection } from '../../netlink/connection.ts'
import { NLM_F_DUMP, NLM_F_REQUEST } from '../../netlink/constants.ts'
import { NetlinkError } from '../../netlink/errors.ts'
import { encodeMessage } from '../../netlink/message.ts'
import { attributeSet, readAttributes } from '../../netlink/schema.ts'
import { INET_DIAG_NOCOOKIE, SOCK_DIAG_BY_FAMILY, TCPF_LISTEN } from './constants.ts'

/** linux/sock_diag.h and linux/unix_diag.h, under the headers' own names. */
const AF_UNIX = 1
const UDIAG_SHOW_NAME = 0x01
const UDIAG_SHOW_UID = 0x40
/** Length of struct unix_diag_msg. */
const UNIX_DIAG_MSG_LENGTH = 16
const UNIX_DIAG_MSG_INODE = 4

/** linux/unix_diag.h: UNIX_DIAG_NAME and UNIX_DIAG_UID (Linux 5.3). */
const UNIX_SOCKET = attributeSet({ name: [0, octets], uid: [7, u32host] })

/** A listening socket. */
export interface UnixListener {
  readonly uid: number
  readonly inode: number
}

/**
 * Lists the sockets that listen at an abstract name (without its first NUL) in this network namespace, also where a
 * runtime padded the name with NULs to 108 octets. Undefined where the kernel has no unix_diag. Uses a
 * NETLINK_SOCK_DIAG connection. Throws what dump throws.
 */
export async function abstractListeners(
  connection: Connection,
  name: string,
): Promise<readonly UnixListener[] | undefined> {
  const wanted = `\0${name}`
  const found: (UnixListener | undefined)[] = []
  try {
    await connection.dump({
      operation: 'list',
      object: 'unix sockets',
      build: encodeUnixQuery,
      onMessage(view, message) {
        if (message.type !== SOCK_DIAG_BY_FAMILY) return
        const { start, end } = message
        const { name, uid } = readAttributes(view, UNIX_SOCKET, { start: start + UNIX_DIAG_MSG_LENGTH, end })
        if (name?.replace(/\0+$/, '') !== wanted) return
        const inode = view.data.getUint32(start + UNIX_DIAG_MSG_INODE, true)
        found.push(uid === undefined ? undefined : { uid, inode })
      },
    })
  } catch (error) {
    if (error instanceof NetlinkError && error.code === 'ENOENT') return undefined
    throw error
  }
  const known = found.filter(each => each !== undefined)
  return known.length === found.length ? known : undefined
}

function encodeUnixQuery(sequence: number): Uint8Array {
  const head = { type: SOCK_DIAG_BY_FAMILY, flags: NLM_F_REQUEST | NLM_F_DUMP, sequence }
  const show = UDIAG_SHOW_NAME | UDIAG_SHOW_UID
  return encodeMessage(head, ({ out }) => {
    // struct unix_diag_req.
    out.u8(AF_UNIX)
    out.u8(0)
    out.u16(0)
    for (const word of [TCPF_LISTEN, 0, show, INET_DIAG_NOCOOKIE, INET_DIAG_NOCOOKIE]) out.u32(word)
  })
}
