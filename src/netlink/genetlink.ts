import type { ByteView, ByteWriter } from './attribute.ts'
import { string, u16host, u32host } from './codecs.ts'
import type { Connection } from './connection.ts'
import { NLM_F_REQUEST, NLMSG_MIN_TYPE } from './constants.ts'
import { errnoNumber, malformed, NetlinkError } from './errors.ts'
import { encodeMessage, type Message } from './message.ts'
import { attributeSet, readAttributes, writeAttributes } from './schema.ts'

/**
 * Generic netlink (net/netlink/genetlink.c): families have a name, and the kernel assigns their message type when
 * their module is loaded. Constants are those of linux/genetlink.h, under the header's own names.
 */
export const GENL_ID_CTRL = NLMSG_MIN_TYPE
export const GENL_HDRLEN = 4

export const CTRL_CMD_NEWFAMILY = 1
export const CTRL_CMD_GETFAMILY = 3

const CTRL_ATTR_FAMILY_ID = 1
const CTRL_ATTR_FAMILY_NAME = 2
const CTRL_ATTR_VERSION = 3
const CTRL_ATTR_HDRSIZE = 4
const CTRL_ATTR_MAXATTR = 5

export const FAMILY = attributeSet({
  id: [CTRL_ATTR_FAMILY_ID, u16host],
  name: [CTRL_ATTR_FAMILY_NAME, string],
  version: [CTRL_ATTR_VERSION, u32host],
  headerBytes: [CTRL_ATTR_HDRSIZE, u32host],
  attributeMax: [CTRL_ATTR_MAXATTR, u32host],
})

/** struct genlmsghdr. */
export interface GenlMsgHdr {
  readonly command: number
  /** Version of the family's protocol. */
  readonly version: number
}

/** Writes struct genlmsghdr. */
export function writeGenlMsgHdr(out: ByteWriter, { command, version }: GenlMsgHdr): void {
  out.u32(command | (version << 8))
}

/** Reads struct genlmsghdr after the header. Throws NetlinkError when the message ends before it. */
export function readGenlMsgHdr(view: ByteView, { start, end }: Message): GenlMsgHdr {
  if (end - start < GENL_HDRLEN) throw malformed('a message without its genlmsghdr', start)
  return { command: view.data.getUint8(start), version: view.data.getUint8(start + 1) }
}

/** Returns the position of the attributes of a generic netlink message. */
export function genericSpan({ start, end }: Message): { readonly start: number; readonly end: number } {
  return { start: start + GENL_HDRLEN, end }
}

/**
 * Returns the message type of a family, valid while its module stays loaded. The request makes the kernel load the
 * module if it can. Throws NetlinkError (ENOENT: there is no such family) and what roundTrip throws.
 */
export function findFamily(connection: Connection, name: string): number {
  const words = { operation: 'find', object: `generic netlink family ${name}` }
  let id: number | undefined
  connection.roundTrip({
    ...words,
    build: sequence => encodeGetFamily(name, sequence),
    onMessage: (view, message) => {
      if (message.type !== GENL_ID_CTRL || readGenlMsgHdr(view, message).command !== CTRL_CMD_NEWFAMILY)
        return
      const family = readAttributes(view, FAMILY, genericSpan(message))
      if (family.name === name) id = family.id
    },
  })
  if (id !== undefined) return id
  const extendedAck = 'the reply has no family id'
  throw new NetlinkError({ ...words, errno: errnoNumber('EBADMSG'), extendedAck })
}

function encodeGetFamily(name: string, sequence: number): Uint8Array {
  return encodeMessage({ type: GENL_ID_CTRL, flags: NLM_F_REQUEST, sequence }, out => {
    writeGenlMsgHdr(out.out, { command: CTRL_CMD_GETFAMILY, version: 1 })
    writeAttributes(out, FAMILY, { name })
  })
}
