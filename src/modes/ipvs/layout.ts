import { FAMILIES, type Family } from '../../base/ip.ts'
import { PROTOCOL_NUMBERS } from '../../base/ip-packet.ts'
import type { Ipset, IpsetEntry, IpsetType } from '../../kernel/ipset/state.ts'
import type { VirtualAddress } from '../../kernel/ipvs/state.ts'
import { NFT_DATA_VERDICT, NFT_SET_MAP } from '../../kernel/nft/constants.ts'
import { concatenatedType, TYPE_INET_PROTOCOL, TYPE_INET_SERVICE } from '../../kernel/nft/datatypes.ts'
import type { NftSet } from '../../kernel/nft/state.ts'
import type { Protocol } from '../../model/service.ts'
import { type FamilyLayout, plainSet, sizeToHold } from '../common/tables.ts'

/** The sets of node ports of each protocol: all of them, and those of policy Local. */
export const NODE_PORT_SETS: Readonly<Record<Protocol, { readonly all: SetStem; readonly local: SetStem }>> =
  {
    TCP: { all: 'NODE-PORT-TCP', local: 'NODE-PORT-LOCAL-TCP' },
    UDP: { all: 'NODE-PORT-UDP', local: 'NODE-PORT-LOCAL-UDP' },
    SCTP: { all: 'NODE-PORT-SCTP-HASH', local: 'NODE-PORT-LOCAL-SCTP-HASH' },
  }

export function entryAt({ protocol, ip, port }: VirtualAddress): IpsetEntry {
  return { ip, protocol: PROTOCOL_NUMBERS[protocol], port }
}

/** Gives the entry of a node port in NODE_PORT_SETS. Bitmaps of ports have no addresses. */
export function nodePortEntry(at: VirtualAddress): IpsetEntry {
  return at.protocol === 'SCTP' ? entryAt(at) : { port: at.port }
}

const PORTS = 65_536
const IPSET_FULL = 0.75

/**
 * Declares a set that holds `count` entries. The declaration `before` stays while the set is less than 75 %
 * full, because a set of another size must be made beside the old one and swapped in.
 */
export function declareIpset(
  stem: SetStem,
  family: Family,
  { count, before }: { readonly count: number; readonly before: Ipset | undefined },
): Ipset {
  const type = typeOfSet(stem)
  const name = setName(stem, family)
  const ofFamily = type === 'bitmap:port' ? 'IPv4' : family
  const isAlike = before?.type === type && before.family === ofFamily
  if (type === 'bitmap:port')
    return isAlike ? before : { name, type, family: ofFamily, maxElements: PORTS, hashSize: 0 }
  if (isAlike && count <= before.maxElements * IPSET_FULL) return before
  const maxElements = sizeToHold(count / IPSET_FULL, isAlike ? before.maxElements : undefined, GROWTH)
  // A set with as many buckets as entries does not grow while it is filled.
  const hashSize = Math.min(maxElements, Math.max(1_024, powerOfTwo(count)))
  return { name, type, family: ofFamily, maxElements, hashSize }
}

/** The least is the default size, as in kube-proxy. */
const GROWTH = { min: 65_536, full: 1, headroom: 1 } as const

function powerOfTwo(count: number): number {
  return 2 ** Math.ceil(Math.log2(Math.max(1, count)))
}

export const CHAIN_EXTERNAL = 'external'
export const CHAIN_EXTERNAL_LOCAL = 'external-local'
export const CHAIN_CLUSTER_LIST = 'cluster-list'
export const CHAIN_NODE_PORTS = 'node-ports'

/** The names of sets and maps of our own tables. */
export const NFT_SET_NAMES = [
  'verdicts',
  'cluster-lists',
  'local-lists',
  'no-local',
  'health-checks',
  'nodeport-ips',
] as const
export type NftSetName = (typeof NFT_SET_NAMES)[number]

const NFT_FULL = 0.9
const NFT_SIZE_MIN: Readonly<Record<NftSetName, number>> = {
  verdicts: 4_096,
  'cluster-lists': 4_096,
  'local-lists': 1_024,
  'no-local': 4_096,
  'health-checks': 1_024,
  'nodeport-ips': 64,
}

/** Gives the size of a set, see sizeToHold. A new size replaces the table. */
export function sizeOfNftSet(name: NftSetName, count: number, before: number | undefined): number {
  return sizeToHold(count, before, { min: NFT_SIZE_MIN[name], full: NFT_FULL })
}

export function declareNftSet(name: NftSetName, size: number, layout: FamilyLayout): NftSet {
  const { addressType, addressLength } = layout
  if (name === 'nodeport-ips') return plainSet(name, size, { types: [addressType], length: addressLength })
  const types = [addressType, TYPE_INET_PROTOCOL, TYPE_INET_SERVICE]
  const set = plainSet(name, size, { types, length: addressLength + 8 })
  switch (name) {
    case 'no-local':
    case 'health-checks':
      return set
    case 'verdicts':
      return { ...set, flags: NFT_SET_MAP, dataType: NFT_DATA_VERDICT }
    case 'cluster-lists':
    case 'local-lists':
      return {
        ...set,
        flags: NFT_SET_MAP,
        dataType: concatenatedType(addressType, TYPE_INET_SERVICE),
        dataLength: addressLength + 4,
      }
  }
}

/** The highest port of private virtual servers; further ones count down from here. */
export const PRIVATE_PORT_MAX = 65_535

/** The ipsets of kube-proxy's IPVS mode (1.36) by name without the prefix: the type, and the comment of rules. */
const SETS = {
  'LOOP-BACK': ['hash:ip,port,ip', 'Kubernetes endpoints dst ip:port, source ip for solving hairpin purpose'],
  'CLUSTER-IP': ['hash:ip,port', 'Kubernetes service cluster ip + port for masquerade purpose'],
  'EXTERNAL-IP': ['hash:ip,port', 'Kubernetes service external ip + port for masquerade and filter purpose'],
  'EXTERNAL-IP-LOCAL': [
    'hash:ip,port',
    'Kubernetes service external ip + port with externalTrafficPolicy=local',
  ],
  'LOAD-BALANCER': ['hash:ip,port', 'Kubernetes service lb portal'],
  'LOAD-BALANCER-LOCAL': [
    'hash:ip,port',
    'Kubernetes service load balancer ip + port with externalTrafficPolicy=local',
  ],
  'LOAD-BALANCER-FW': [
    'hash:ip,port',
    'Kubernetes service load balancer ip + port for load balancer with sourceRange',
  ],
  'LOAD-BALANCER-SOURCE-IP': [
    'hash:ip,port,ip',
    'Kubernetes service load balancer ip + port + source IP for packet filter purpose',
  ],
  'LOAD-BALANCER-SOURCE-CIDR': [
    'hash:ip,port,net',
    'Kubernetes service load balancer ip + port + source cidr for packet filter purpose',
  ],
  'NODE-PORT-TCP': ['bitmap:port', 'Kubernetes nodeport TCP port for masquerade purpose'],
  'NODE-PORT-LOCAL-TCP': ['bitmap:port', 'Kubernetes nodeport TCP port with externalTrafficPolicy=local'],
  'NODE-PORT-UDP': ['bitmap:port', 'Kubernetes nodeport UDP port for masquerade purpose'],
  'NODE-PORT-LOCAL-UDP': ['bitmap:port', 'Kubernetes nodeport UDP port with externalTrafficPolicy=local'],
  'NODE-PORT-SCTP-HASH': [
    'hash:ip,port',
    "Kubernetes nodeport SCTP port for masquerade purpose with type 'hash ip:port'",
  ],
  'NODE-PORT-LOCAL-SCTP-HASH': [
    'hash:ip,port',
    "Kubernetes nodeport SCTP port with externalTrafficPolicy=local with type 'hash ip:port'",
  ],
  'HEALTH-CHECK-NODE-PORT': ['bitmap:port', 'Kubernetes health check node port'],
  'IPVS-IPS': ['hash:ip', 'Addresses on the ipvs interface'],
} as const satisfies Readonly<Record<string, readonly [type: IpsetType, comment: string]>>

export type SetStem = keyof typeof SETS
export const SET_STEMS: readonly SetStem[] = Object.keys(SETS).filter(isStem)

function isStem(name: string): name is SetStem {
  return Object.hasOwn(SETS, name)
}

function typeOfSet(stem: SetStem): IpsetType {
  return SETS[stem][0]
}

/** Gives the comment of kube-proxy's rules about a set. */
export function commentOfSet(stem: SetStem): string {
  return SETS[stem][1]
}

const PREFIXES: Readonly<Record<Family, string>> = { IPv4: 'KUBE-', IPv6: 'KUBE-6-' }

/** `KUBE-CLUSTER-IP`, `KUBE-6-CLUSTER-IP`, `KUBE-6-LOAD-BALANCER-SOURCE-CID`. */
export function setName(stem: SetStem, family: Family): string {
  // IPSET_MAXNAMELEN without its NUL. kube-proxy also truncates longer names.
  return (PREFIXES[family] + stem).slice(0, 31)
}

/** Gives the family of the Services that a set is for. A bitmap of ports has none itself. */
export function familyOfSet(name: string): Family {
  return name.startsWith(PREFIXES.IPv6) ? 'IPv6' : 'IPv4'
}

/** Lists the set names of both families. Sets with these names are ours, even if another program made them. */
export function allSetNames(): readonly string[] {
  return FAMILIES.flatMap(family => SET_STEMS.map(stem => setName(stem, family)))
}
