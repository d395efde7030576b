/**
 * Netlink: sockets, messages, and attributes described by tables. A Transport moves datagrams, a Connection holds
 * conversations over it, and an AttributeSet describes the attributes of a message.
 */
export type { Clock } from '../base/clock.ts'
export { bytesFromOctets, type Octets, octetsFromBytes } from '../base/octets.ts'
export { AttributeWriter, type ByteView, ByteWriter, forEachAttribute, viewOf } from '../netlink/attribute.ts'
export {
  type Codec,
  flag,
  nestedOctets,
  octets,
  s32be,
  string,
  u8,
  u16be,
  u16host,
  u32be,
  u32host,
  u64be,
  u64host,
} from '../netlink/codecs.ts'
export { Connection, type ConnectionOptions, REQUEST_SEQUENCE_MAX } from '../netlink/connection.ts'
export * from '../netlink/constants.ts'
export type { Burst, BurstError, BurstReplies, Request, Words } from '../netlink/conversation.ts'
export {
  errnoName,
  errnoNumber,
  NetlinkError,
  type NetlinkErrorDetails,
  OutcomeUnknownError,
} from '../netlink/errors.ts'
export {
  findFamily,
  GENL_HDRLEN,
  type GenlMsgHdr,
  genericSpan,
  readGenlMsgHdr,
  writeGenlMsgHdr,
} from '../netlink/genetlink.ts'
export {
  type Acknowledgement,
  closeMessage,
  type Message,
  type MessageHead,
  NFGENMSG_LENGTH,
  type NfGenMsg,
  openMessage,
  readMessages,
  readNfGenMsg,
  writeNfGenMsg,
} from '../netlink/message.ts'
export { type NetlinkOptions, openNetlink } from '../netlink/native.ts'
export {
  type AttributeSet,
  type Attributes,
  attributeSet,
  type Field,
  type Fields,
  listOf,
  type NestedCodec,
  nested,
  readAttributes,
  type Tagged,
  type UnionCodec,
  type UnionFields,
  type UnknownVariant,
  unionOf,
  type ValuesOf,
  type Variants,
  writeAttributes,
} from '../netlink/schema.ts'
export { type Repetition, SystemError, type Transport } from '../netlink/transport.ts'
