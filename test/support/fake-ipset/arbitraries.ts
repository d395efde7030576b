import fc from 'fast-check'
import { cidrOf, type Family } from '../../../src/base/ip.ts'
import { entryKey, type Ipset, type IpsetEntry, type IpsetType } from '../../../src/kernel/ipset/state.ts'

const TYPES = ['hash:ip', 'hash:ip,port', 'hash:ip,port,ip', 'hash:ip,port,net', 'bitmap:port'] as const

/** Addresses of few different bytes, so that runs of zeros are frequent in IPv6. */
function anyIp(family: Family): fc.Arbitrary<string> {
  const octet = fc.oneof({ weight: 3, arbitrary: fc.constantFrom(0, 0, 1, 255) }, fc.nat(255))
  const length = family === 'IPv4' ? 4 : 16
  return fc
    .array(octet, { minLength: length, maxLength: length })
    .map(bytes => String.fromCharCode(...bytes))
    .filter(ip => !/^\0+$/.test(ip))
}

const port = fc.oneof(fc.constantFrom(0, 1, 80, 65535), fc.nat(65535))
const protocol = fc.constantFrom(6, 17, 132, 136)

/** An entry as the kernel keeps it. */
export function anyEntry({ type, family }: Pick<Ipset, 'type' | 'family'>): fc.Arbitrary<IpsetEntry> {
  const ip = anyIp(family)
  switch (type) {
    case 'bitmap:port':
      return fc.record({ port })
    case 'hash:ip':
      return fc.record({ ip })
    case 'hash:ip,port':
      return fc.record({ ip, protocol, port })
    case 'hash:ip,port,ip':
      return fc.record({ ip, protocol, port, ip2: ip })
    case 'hash:ip,port,net':
      return fc
        .tuple(
          fc.record({ ip, protocol, port }),
          ip,
          fc.integer({ min: 1, max: family === 'IPv4' ? 32 : 128 }),
        )
        .map(([rest, ip2, prefix2]) => ({ ...rest, ip2: cidrOf(ip2, prefix2).ip, prefix2 }))
  }
}

const anyType: fc.Arbitrary<IpsetType> = fc.constantFrom(...TYPES)

export function anySet(name: string): fc.Arbitrary<Ipset> {
  const family = fc.constantFrom<Family>('IPv4', 'IPv6')
  return fc.tuple(anyType, family).map(([type, of]) => setOf(name, type, of))
}

/** A set of kube-proxy's size. */
export function setOf(name: string, type: IpsetType, family: Family = 'IPv4'): Ipset {
  if (type === 'bitmap:port') return { name, type, family: 'IPv4', maxElements: 65_536, hashSize: 0 }
  return { name, type, family, maxElements: 65_536, hashSize: 1024 }
}

export interface FilledSet {
  readonly set: Ipset
  /** No two are equal. */
  readonly entries: readonly IpsetEntry[]
}

export function anyFilledSet(name: string, most = 40): fc.Arbitrary<FilledSet> {
  return anySet(name).chain(set =>
    fc
      .uniqueArray(anyEntry(set), { maxLength: most, selector: entry => entryKey(set.name, entry) })
      .map(entries => ({ set, entries })),
  )
}

export function add({ set, entries }: FilledSet, groups: readonly string[] = []) {
  return { verb: 'add-entries', set, entries, groups } as const
}

/** Different entries of a hash:ip,port. */
export function manyEntries(count: number, first = 0): IpsetEntry[] {
  return Array.from({ length: count }, (_, i) => {
    const n = first + i
    return { ip: String.fromCharCode(10, n >> 16, (n >> 8) & 255, n & 255), protocol: 6, port: 80 }
  })
}
