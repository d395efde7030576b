import { familyOf, type Ip } from '../../base/ip.ts'
import type { ByteWriter } from '../../netlink/bytes.ts'
import { NLA_F_NESTED } from '../../netlink/constants.ts'
import * as ipvs from './constants.ts'
import type { RealServer, VirtualAddress, VirtualServer } from './state.ts'

/*
 * What messages have that make or change virtual servers and real servers. A full load has tens of thousands of them, most of them
 * written before a compiler has seen much of it: they are written in a straight line, with few calls. A property test
 * holds this against the tables.
 */

/** Words of a nested address. */
const ADDRESS_WORDS = 12
const DESTINATION_WORDS = ADDRESS_WORDS + 18
const DESTINATION_BYTES = 72
const U16_BYTES = 6
const U32_BYTES = 8
const IP_BYTES = 20
const FLAGS_BYTES = 12
/** Without the scheduler's own; its name is at most IP_VS_SCHEDNAME_MAXLEN bytes, with the NUL. */
const SERVER_WORDS_MAX = ADDRESS_WORDS + 12
const SCHEDULER_LENGTH_MAX = 15
const ALL_FLAGS = -1

/** An attribute's header as a word: its length and, in the upper half, its type. */
const header = (type: number, length: number): number => (type << 16) | length

/** Appends the attributes of a real server. They are equally long in both families. `protocol` is that of the virtual server. */
export function writeDestination(
  out: ByteWriter,
  protocol: number,
  { server, destination }: { readonly server: VirtualAddress; readonly destination: RealServer },
): void {
  const start = begin(out, DESTINATION_WORDS)
  const { words } = out
  let at = writeServerAddress(words, start >> 2, server, protocol)
  words[at] = header(ipvs.IPVS_CMD_ATTR_DEST | NLA_F_NESTED, DESTINATION_BYTES)
  words[at + 1] = header(ipvs.IPVS_DEST_ATTR_ADDR, IP_BYTES)
  writeIp(words, at + 2, destination.ip)
  at += 6
  words[at] = header(ipvs.IPVS_DEST_ATTR_PORT, U16_BYTES)
  words[at + 1] = bigEndian(destination.port)
  words[at + 2] = header(ipvs.IPVS_DEST_ATTR_FWD_METHOD, U32_BYTES)
  words[at + 3] = destination.forwarding
  words[at + 4] = header(ipvs.IPVS_DEST_ATTR_WEIGHT, U32_BYTES)
  words[at + 5] = destination.weight
  // No limits of connections.
  words[at + 6] = header(ipvs.IPVS_DEST_ATTR_U_THRESH, U32_BYTES)
  words[at + 7] = 0
  words[at + 8] = header(ipvs.IPVS_DEST_ATTR_L_THRESH, U32_BYTES)
  words[at + 9] = 0
  words[at + 10] = header(ipvs.IPVS_DEST_ATTR_ADDR_FAMILY, U16_BYTES)
  words[at + 11] = familyNumber(destination.ip)
  out.length = start + DESTINATION_WORDS * 4
}

/** Whether writeServer can write it: whatever else a scheduler is called is for the tables. */
export function isUsualServer({ scheduler }: VirtualServer): boolean {
  if (scheduler.length > SCHEDULER_LENGTH_MAX) return false
  for (let i = 0; i < scheduler.length; i++) {
    const code = scheduler.charCodeAt(i)
    if (code === 0 || code > 0x7f) return false
  }
  return true
}

/** Appends the attributes of a virtual server. */
export function writeServer(out: ByteWriter, protocol: number, server: VirtualServer): void {
  const start = begin(out, SERVER_WORDS_MAX)
  const { words, bytes } = out
  const first = start >> 2
  let at = writeServerAddress(words, first, server, protocol)
  const { scheduler } = server
  const nameBytes = scheduler.length + 1
  words[at] = header(ipvs.IPVS_SVC_ATTR_SCHED_NAME, 4 + nameBytes)
  const nameWords = (nameBytes + 3) >> 2
  for (let i = 1; i <= nameWords; i++) words[at + i] = 0
  for (let i = 0; i < scheduler.length; i++) bytes[at * 4 + 4 + i] = scheduler.charCodeAt(i)
  at += 1 + nameWords
  words[at] = header(ipvs.IPVS_SVC_ATTR_FLAGS, FLAGS_BYTES)
  words[at + 1] = server.flags
  words[at + 2] = ALL_FLAGS
  words[at + 3] = header(ipvs.IPVS_SVC_ATTR_TIMEOUT, U32_BYTES)
  words[at + 4] = server.timeoutS
  words[at + 5] = header(ipvs.IPVS_SVC_ATTR_NETMASK, U32_BYTES)
  words[at + 6] = familyOf(server.ip) === 'IPv4' ? swapped(server.netmask) : server.netmask
  const end = (at + 7) * 4
  words[first] = header(ipvs.IPVS_CMD_ATTR_SERVICE | NLA_F_NESTED, end - start)
  out.length = end
}

function begin(out: ByteWriter, words: number): number {
  if (out.bytes.length - out.length < words * 4) out.reserve(words * 4)
  return out.length
}

/** The nested attributes that every virtual server begins with. Gives the word behind them. */
function writeServerAddress(
  words: Int32Array,
  at: number,
  { ip, port }: VirtualAddress,
  protocol: number,
): number {
  words[at] = header(ipvs.IPVS_CMD_ATTR_SERVICE | NLA_F_NESTED, ADDRESS_WORDS * 4)
  words[at + 1] = header(ipvs.IPVS_SVC_ATTR_AF, U16_BYTES)
  words[at + 2] = familyNumber(ip)
  words[at + 3] = header(ipvs.IPVS_SVC_ATTR_PROTOCOL, U16_BYTES)
  words[at + 4] = protocol
  words[at + 5] = header(ipvs.IPVS_SVC_ATTR_ADDR, IP_BYTES)
  writeIp(words, at + 6, ip)
  words[at + 10] = header(ipvs.IPVS_SVC_ATTR_PORT, U16_BYTES)
  words[at + 11] = bigEndian(port)
  return at + ADDRESS_WORDS
}

function familyNumber(ip: Ip): number {
  return ip.length === 4 ? ipvs.AF_INET : ipvs.AF_INET6
}

function bigEndian(port: number): number {
  return (port >> 8) | ((port & 0xff) << 8)
}

function swapped(value: number): number {
  return ((value & 0xff) << 24) | ((value & 0xff00) << 8) | ((value >>> 8) & 0xff00) | (value >>> 24)
}

/** union nf_inet_addr: 16 bytes, of which IPv4 has the first four. */
function writeIp(words: Int32Array, at: number, ip: Ip): void {
  for (let i = 0; i < 4; i++) {
    const from = i * 4
    words[at + i] =
      from >= ip.length
        ? 0
        : ip.charCodeAt(from) |
          (ip.charCodeAt(from + 1) << 8) |
          (ip.charCodeAt(from + 2) << 16) |
          (ip.charCodeAt(from + 3) << 24)
  }
}
