import type { Family, Ip } from '../../base/ip.ts'
import type { Writer } from '../../netlink/flat-writer.ts'
import { type SourcesOf, writerOf } from '../../netlink/schema.ts'
import { type ADDRESS, type ENTRY, LIST_ENTRY } from './schema.ts'
import { SET_TYPES } from './set-types.ts'
import type { Ipset, IpsetEntry, IpsetType } from './state.ts'

/** Maximum length of an entry: two IPv6 addresses, port, protocol, prefix, line, and their headers. */
export const ENTRY_BYTES_MAX = 88

/** Returns why an entry cannot be in a set; undefined when it can. The writers take only entries that can. */
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

/** An entry and its position in the message, counted from 1. */
export interface NumberedEntry {
  readonly entry: IpsetEntry
  readonly line: number
}

/** Expects addresses of the set's family. */
function address(
  family: Family,
  ipOf: (source: NumberedEntry) => Ip | undefined,
): SourcesOf<typeof ADDRESS, NumberedEntry> {
  return family === 'IPv4' ? { v4: ipOf } : { v6: ipOf }
}

/** Compiles a writer that skips the fields that the type does not use. */
function writerFor(type: IpsetType, family: Family): Writer<NumberedEntry> {
  const { fields } = SET_TYPES[type]
  const sources: SourcesOf<typeof ENTRY, NumberedEntry> = {
    ip: address(family, ({ entry }) => entry.ip),
    port: ({ entry }) => entry.port,
    protocol: ({ entry }) => entry.protocol,
    ip2: address(family, ({ entry }) => entry.ip2),
    prefix2: ({ entry }) => entry.prefix2,
  }
  const its = Object.entries(sources).filter(([name]) => fields.some(field => field === name))
  return writerOf(LIST_ENTRY, { entry: { ...Object.fromEntries(its), line: ({ line }) => line } })
}

function writersFor(type: IpsetType): Readonly<Record<Family, Writer<NumberedEntry>>> {
  return { IPv4: writerFor(type, 'IPv4'), IPv6: writerFor(type, 'IPv6') }
}

const WRITERS: Readonly<Record<IpsetType, ReturnType<typeof writersFor>>> = {
  'hash:ip': writersFor('hash:ip'),
  'hash:ip,port': writersFor('hash:ip,port'),
  'hash:ip,port,ip': writersFor('hash:ip,port,ip'),
  'hash:ip,port,net': writersFor('hash:ip,port,net'),
  'bitmap:port': writersFor('bitmap:port'),
}

/** Returns the writer for entries of IPSET_ATTR_ADT; they must be able to be in the set. */
export function entryWriter({ type, family }: Ipset): Writer<NumberedEntry> {
  return WRITERS[type][family]
}
