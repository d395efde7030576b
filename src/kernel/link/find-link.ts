import type { ByteView } from '../../netlink/bytes.ts'
import type { Connection } from '../../netlink/connection.ts'
import { NLM_F_REQUEST } from '../../netlink/constants.ts'
import { NetlinkError } from '../../netlink/errors.ts'
import { encodeMessage, type Message } from '../../netlink/message.ts'
import { readAttributes, writeAttributes } from '../../netlink/schema.ts'
import { RTM_GETLINK, RTM_NEWLINK } from './constants.ts'
import { IFINFOMSG_LENGTH, LINK, readIfInfoMsg, writeIfInfoMsg } from './schema.ts'

/** A device of this network namespace. */
export interface Link {
  readonly index: number
  /** `dummy`, `veth`; undefined of hardware and the loopback device. */
  readonly kind: string | undefined
}

/** The device of a name; undefined when there is none. Throws what roundTrip throws. */
export function findLink(connection: Connection, name: string): Link | undefined {
  const found: Link[] = []
  try {
    connection.roundTrip({
      operation: 'read',
      object: `device ${name}`,
      build: sequence => encodeGetLink(name, sequence),
      onMessage(view, message) {
        if (message.type === RTM_NEWLINK) found.push(decodeLink(view, message))
      },
    })
  } catch (error) {
    if (error instanceof NetlinkError && error.code === 'ENODEV') return undefined
    throw error
  }
  return found[0]
}

function encodeGetLink(name: string, sequence: number): Uint8Array {
  return encodeMessage({ type: RTM_GETLINK, flags: NLM_F_REQUEST, sequence }, out => {
    writeIfInfoMsg(out.out, 0)
    writeAttributes(out, LINK, { name })
  })
}

function decodeLink(view: ByteView, message: Message): Link {
  const span = { start: message.start + IFINFOMSG_LENGTH, end: message.end }
  return { index: readIfInfoMsg(view, message), kind: readAttributes(view, LINK, span).info?.kind }
}
