import type { Ip } from '../../base/ip.ts'
import type { ByteWriter } from '../../netlink/bytes.ts'
import { NLA_F_NESTED, NLM_F_REQUEST } from '../../netlink/constants.ts'
import * as ipvs from './constants.ts'

/** What is filled in; all messages about real servers are equally long, since addresses of both families are. */
export interface DestinationMessage {
  readonly type: number
  readonly flags: number
  readonly sequence: number
  /** IPVS_CMD_NEW_DEST or IPVS_CMD_SET_DEST. */
  readonly command: number
  /** IPPROTO_*. */
  readonly protocol: number
  readonly serverIp: Ip
  readonly serverPort: number
  readonly ip: Ip
  readonly port: number
  readonly forwarding: number
  readonly weight: number
}

const WORDS = 35
const BYTES = WORDS * 4
const SERVICE_BYTES = 48
const DESTINATION_BYTES = 72
const U16_BYTES = 6
const U32_BYTES = 8
const ADDRESS_BYTES = 20

/** An attribute's header as a word: its length and, in the upper half, its type. */
const header = (type: number, length: number): number => (type << 16) | length

/**
 * Appends a message that adds or changes a real server. A full load has tens of thousands of them, most of them written
 * before a compiler has seen much of it: they are written in a straight line. A test holds this against the tables.
 * Gives where it starts.
 */
export function writeDestination(out: ByteWriter, message: DestinationMessage): number {
  const start = out.length
  if (out.bytes.length - start < BYTES) out.reserve(BYTES)
  const { words } = out
  const at = start >> 2
  const { serverIp, ip } = message
  words.fill(0, at, at + WORDS)
  words[at] = BYTES
  words[at + 1] = message.type | ((NLM_F_REQUEST | message.flags) << 16)
  words[at + 2] = message.sequence
  words[at + 4] = message.command | (ipvs.IPVS_GENL_VERSION << 8)
  words[at + 5] = header(ipvs.IPVS_CMD_ATTR_SERVICE | NLA_F_NESTED, SERVICE_BYTES)
  words[at + 6] = header(ipvs.IPVS_SVC_ATTR_AF, U16_BYTES)
  words[at + 7] = familyOf(serverIp)
  words[at + 8] = header(ipvs.IPVS_SVC_ATTR_PROTOCOL, U16_BYTES)
  words[at + 9] = message.protocol
  words[at + 10] = header(ipvs.IPVS_SVC_ATTR_ADDR, ADDRESS_BYTES)
  writeAddress(words, at + 11, serverIp)
  words[at + 15] = header(ipvs.IPVS_SVC_ATTR_PORT, U16_BYTES)
  words[at + 16] = bigEndian(message.serverPort)
  words[at + 17] = header(ipvs.IPVS_CMD_ATTR_DEST | NLA_F_NESTED, DESTINATION_BYTES)
  words[at + 18] = header(ipvs.IPVS_DEST_ATTR_ADDR, ADDRESS_BYTES)
  writeAddress(words, at + 19, ip)
  words[at + 23] = header(ipvs.IPVS_DEST_ATTR_PORT, U16_BYTES)
  words[at + 24] = bigEndian(message.port)
  words[at + 25] = header(ipvs.IPVS_DEST_ATTR_FWD_METHOD, U32_BYTES)
  words[at + 26] = message.forwarding
  words[at + 27] = header(ipvs.IPVS_DEST_ATTR_WEIGHT, U32_BYTES)
  words[at + 28] = message.weight
  // No limits of connections.
  words[at + 29] = header(ipvs.IPVS_DEST_ATTR_U_THRESH, U32_BYTES)
  words[at + 31] = header(ipvs.IPVS_DEST_ATTR_L_THRESH, U32_BYTES)
  words[at + 33] = header(ipvs.IPVS_DEST_ATTR_ADDR_FAMILY, U16_BYTES)
  words[at + 34] = familyOf(ip)
  out.length = start + BYTES
  return start
}

function familyOf(ip: Ip): number {
  return ip.length === 4 ? ipvs.AF_INET : ipvs.AF_INET6
}

function bigEndian(port: number): number {
  return (port >> 8) | ((port & 0xff) << 8)
}

function writeAddress(words: Int32Array, at: number, ip: Ip): void {
  for (let i = 0; i < ip.length; i += 4)
    words[at + (i >> 2)] =
      ip.charCodeAt(i) |
      (ip.charCodeAt(i + 1) << 8) |
      (ip.charCodeAt(i + 2) << 16) |
      (ip.charCodeAt(i + 3) << 24)
}
