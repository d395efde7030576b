import { formatIp, type Ip } from '../../base/ip.ts'
import type { Ipset, IpsetEntry, IpsetHeader, IpsetListing } from './state.ts'

/** The lines of `ipset save` for whole sets, in their order and that of their entries. */
export function* printSets(listings: Iterable<IpsetListing>): IterableIterator<string> {
  for (const listing of listings) {
    yield createText(listing)
    for (const entry of listing.entries) yield `add ${listing.set.name} ${entryText(listing.set, entry)}`
  }
}

/** As `ipset save` prints the making of a set: with what the kernel tells of it. */
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

/** An entry as `ipset save` prints it: `10.96.0.1,tcp:443`, `10.0.0.1,tcp:80,10.0.0.0/8`, `30080`. */
export function entryText({ type }: Pick<Ipset, 'type'>, entry: IpsetEntry): string {
  const { ip = '', protocol = 0, port = 0, ip2 = '', prefix2 } = entry
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
      return `${addressText(ip)},${protocolText(protocol)}:${port},${net}`
    }
  }
}

const PROTOCOLS: Readonly<Record<number, string>> = { 6: 'tcp', 17: 'udp', 132: 'sctp', 136: 'udplite' }

/** The name of a protocol with ports; others, which have none in a set, by number. */
export function protocolText(protocol: number): string {
  return PROTOCOLS[protocol] ?? String(protocol)
}

const ZEROS_12 = '\0'.repeat(12)

/** As inet_ntop(3) writes it: IPv4-compatible addresses (::/96), too, end in IPv4 notation. */
function addressText(ip: Ip): string {
  const isCompatible = ip.length === 16 && ip.startsWith(ZEROS_12) && (ip[12] !== '\0' || ip[13] !== '\0')
  return isCompatible ? `::${formatIp(ip.slice(12))}` : formatIp(ip)
}
