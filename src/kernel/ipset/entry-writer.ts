import type { Ip } from '../../base/ip.ts'
import type { AttributeWriter } from '../../netlink/attribute.ts'
import type { ByteWriter } from '../../netlink/bytes.ts'
import { NLA_F_NESTED, NLA_F_NET_BYTEORDER } from '../../netlink/constants.ts'
import { type ValuesOf, writeAttributes } from '../../netlink/schema.ts'
import * as ipset from './constants.ts'
import { ENTRY } from './schema.ts'
import { SET_TYPES } from './set-types.ts'
import type { Ipset, IpsetEntry } from './state.ts'

/** No entry is longer: two IPv6 addresses, port, protocol, prefix, line, and their headers. */
export const ENTRY_BYTES_MAX = 88

/** Attribute headers as words: the length and, in the upper half, the type. */
const header = (type: number, length: number): number => (type << 16) | length
const NET = NLA_F_NET_BYTEORDER
const ENTRY_NEST = header(ipset.IPSET_ATTR_DATA | NLA_F_NESTED, 0)
const V4 = header(ipset.IPSET_ATTR_IPADDR_IPV4 | NET, 8)
const V6 = header(ipset.IPSET_ATTR_IPADDR_IPV6 | NET, 20)
const PORT = header(ipset.IPSET_ATTR_PORT | NET, 6)
const PROTO = header(ipset.IPSET_ATTR_PROTO, 5)
const CIDR2 = header(ipset.IPSET_ATTR_CIDR2, 5)
const LINE = header(ipset.IPSET_ATTR_CADT_LINENO | NET, 8)

/** Why an entry cannot be in a set; undefined when it can. The writers take only entries that can. */
export function whyNotEntry({ type, family }: Ipset, entry: IpsetEntry): string | undefined {
  const { ip, protocol, port, ip2, prefix2 } = entry
  const length = family === 'IPv4' ? 4 : 16
  if (type === 'bitmap:port') return isWithin(port, 0xffff) ? undefined : `no port: ${port}`
  if (ip === undefined || ip.length !== length) return `no ${family} address`
  if (type === 'hash:ip') return undefined
  if (!isWithin(protocol, 255)) return `no protocol: ${protocol}`
  if (!isWithin(port, 0xffff)) return `no port: ${port}`
  if (type === 'hash:ip,port') return undefined
  if (ip2 === undefined || ip2.length !== length) return `no second ${family} address`
  if (type === 'hash:ip,port,ip') return undefined
  return prefix2 !== 0 && isWithin(prefix2, length * 8) ? undefined : `no length of a prefix: ${prefix2}`
}

function isWithin(value: number | undefined, most: number): boolean {
  return value !== undefined && Number.isInteger(value) && value >= 0 && value <= most
}

/**
 * Appends one entry of IPSET_ATTR_ADT. A full load writes a hundred thousand of them, most of them before a compiler has
 * seen much of it: they are written in a straight line. A property test holds this against writeEntryByTable.
 */
export function writeEntry(out: ByteWriter, { type }: Ipset, entry: IpsetEntry, line: number): void {
  const start = out.length
  if (out.bytes.length - start < ENTRY_BYTES_MAX) out.reserve(ENTRY_BYTES_MAX)
  const { ip, protocol, port, ip2, prefix2 } = entry
  const { bytes, words } = out
  let at = start + 4
  if (ip !== undefined && type !== 'bitmap:port') at = writeAddress(out, at, ipset.IPSET_ATTR_IP, ip)
  if (port !== undefined && type !== 'hash:ip') {
    words[at >> 2] = PORT
    words[(at >> 2) + 1] = (port >> 8) | ((port & 0xff) << 8)
    at += 8
  }
  if (protocol !== undefined && type.startsWith('hash:ip,')) {
    words[at >> 2] = PROTO
    words[(at >> 2) + 1] = protocol
    at += 8
  }
  if (ip2 !== undefined && type.startsWith('hash:ip,port,'))
    at = writeAddress(out, at, ipset.IPSET_ATTR_IP2, ip2)
  if (prefix2 !== undefined && type === 'hash:ip,port,net') {
    words[at >> 2] = CIDR2
    words[(at >> 2) + 1] = prefix2
    at += 8
  }
  words[at >> 2] = LINE
  bytes[at + 4] = line >>> 24
  bytes[at + 5] = line >>> 16
  bytes[at + 6] = line >>> 8
  bytes[at + 7] = line
  at += 8
  words[start >> 2] = ENTRY_NEST | (at - start)
  out.length = at
}

/** Gives the position after it. */
function writeAddress({ bytes, words }: ByteWriter, start: number, type: number, ip: Ip): number {
  const { length } = ip
  words[start >> 2] = header(type | NLA_F_NESTED, 8 + length)
  words[(start >> 2) + 1] = length === 4 ? V4 : V6
  let at = start + 8
  for (let i = 0; i < length; i++) bytes[at++] = ip.charCodeAt(i)
  return at
}

/** As writeEntry, through the attribute table. */
export function writeEntryByTable(out: AttributeWriter, set: Ipset, entry: IpsetEntry, line: number): void {
  out.openNest(ipset.IPSET_ATTR_DATA)
  writeAttributes(out, ENTRY, entryAttributes(set, entry, line))
  out.close()
}

function entryAttributes({ type }: Ipset, entry: IpsetEntry, line: number): ValuesOf<typeof ENTRY> {
  const has = (field: keyof IpsetEntry): boolean => SET_TYPES[type].fields.includes(field)
  const address = (ip: Ip | undefined) => (ip?.length === 4 ? { v4: ip } : { v6: ip })
  return {
    ip: has('ip') ? address(entry.ip) : undefined,
    port: has('port') ? entry.port : undefined,
    protocol: has('protocol') ? entry.protocol : undefined,
    ip2: has('ip2') ? address(entry.ip2) : undefined,
    prefix2: has('prefix2') ? entry.prefix2 : undefined,
    line,
  }
}
