import { formatIp, type Ip } from '../../base/ip.ts'
import type { Ipset, IpsetEntry, IpsetHeader, IpsetListing } from './state.ts'

/** Prints whole sets as lines of `ipset save`, in the given order of sets and entries. */
export function* printSets(listings: Iterable<IpsetListing>): IterableIterator<string> {
  for (const listing of listings) {
    yield createText(listing)
    for (const entry of listing.entries) yield `add ${listing.set.name} ${entryText(listing.set, entry)}`
  }
}

/** Prints the `create` line of a set as `ipset save` does, with the values that the kernel reports. */
export function createText(header: Pick<IpsetHeader, 'set' | 'bucketSize' | 'initialValue'>): string {
  const { set, bucketSize, initialValue } = header
  const { name, type, family, hashSize, maxElements } = set
  if (type === 'bitmap:port') return `create ${name} ${type} range 0-65535`
  const kind = `${type} family ${family === 'IPv4' ? 'inet' : 'inet6'}`
  const size = `hashsize ${hashSize} maxelem ${maxElements}`
  const buckets = bucketSize === undefined ? '' : ` bucketsize ${bucketSize}`
  const start = initialValue === undefined ? '' : ` initval 0x${initialValue.toString(16).padStart(8, '0')}`
  return `create ${name} ${kind} ${size}${buckets}${start}`
}

/** Prints an entry as `ipset save` does: `10.96.0.1,tcp:443`, `10.0.0.1,tcp:80,10.0.0.0/8`, `30080`. */
export function entryText({ type }: Pick<Ipset, 'type'>, entry: IpsetEntry): string {
  const { ip = '', protocol = 0, port = 0, ip2 = '', prefix2, nomatch } = entry
  switch (type) {
    case 'bitmap:port':
      return String(port)
    case 'hash:ip':
      return addressText(ip)
    case 'hash:ip,port':
      return `${addressText(ip)},${protocolText(protocol)}:${port}`
    case 'hash:ip,port,ip':
      return `${addressText(ip)},${protocolText(protocol)}:${port},${addressText(ip2)}`
    case 'hash:ip,port,net': {
      const isHost = prefix2 === undefined || prefix2 === ip2.length * 8
      const net = `${addressText(ip2)}${isHost ? '' : `/${prefix2}`}`
      return `${addressText(ip)},${protocolText(protocol)}:${port},${net}${nomatch === true ? ' nomatch' : ''}`
    }
  }
}

const PROTOCOLS: Readonly<Record<number, string>> = { 6: 'tcp', 17: 'udp', 132: 'sctp', 136: 'udplite' }

/** Returns the name of a protocol with ports; other protocols, which have no ports in a set, by number. */
export function protocolText(protocol: number): string {
  return PROTOCOLS[protocol] ?? String(protocol)
}

const ZEROS_12 = '\0'.repeat(12)

/** Formats an address as inet_ntop(3) does: IPv4-compatible addresses (::/96) end in IPv4 notation, too. */
function addressText(ip: Ip): string {
  const isCompatible = ip.length === 16 && ip.startsWith(ZEROS_12) && (ip[12] !== '\0' || ip[13] !== '\0')
  return isCompatible ? `::${formatIp(ip.slice(12))}` : formatIp(ip)
}
