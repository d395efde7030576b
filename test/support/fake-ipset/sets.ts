import { Refusal } from '../fake-kernel/objects.ts'

export interface FakeIpset {
  name: string
  readonly type: string
  /** NFPROTO_*; 0 of a bitmap:port. */
  readonly family: number
  readonly revision: number
  readonly maxElements: number
  readonly hashSize: number
  readonly initialValue: number
  readonly timeoutS: number | undefined
  /** By all that tells two elements apart. */
  readonly elements: Map<string, FakeElement>
  /** Of rules and other sets. */
  references: number
  /** Lists that are under way (ref_netlink). */
  listings: number
}

/** Addresses as their bytes. */
export interface FakeElement {
  readonly ip?: string | undefined
  readonly protocol?: number | undefined
  readonly port?: number | undefined
  readonly ip2?: string | undefined
  readonly prefix2?: number | undefined
  /** IPSET_FLAG_NOMATCH. */
  readonly flags?: number | undefined
}

/** Types as the kernel has them: revisions from, to; from which one bucketsize and initval are told. */
export interface FakeType {
  readonly min: number
  readonly max: number
  readonly buckets: number
}

/** Linux 6.18. */
export const TYPES: Readonly<Record<string, FakeType>> = {
  'hash:ip': { min: 0, max: 6, buckets: 5 },
  'hash:ip,port': { min: 0, max: 7, buckets: 6 },
  'hash:ip,port,ip': { min: 0, max: 6, buckets: 6 },
  'hash:ip,port,net': { min: 0, max: 8, buckets: 8 },
  'bitmap:port': { min: 0, max: 3, buckets: Number.POSITIVE_INFINITY },
}

/** linux/netfilter/ipset/ip_set.h and its neighbors; written down a second time, by other means than the product's. */
export const ERR = {
  ENOENT: 2,
  EBUSY: 16,
  EEXIST: 17,
  EINVAL: 22,
  PROTOCOL: 4097,
  FIND_TYPE: 4098,
  BUSY: 4100,
  EXIST_SETNAME2: 4101,
  TYPE_MISMATCH: 4102,
  EXIST: 4103,
  INVALID_CIDR: 4104,
  INVALID_FAMILY: 4106,
  HASH_FULL: 4352,
  HASH_ELEM: 4353,
  INVALID_PROTO: 4354,
} as const

export function refuse(errno: number): never {
  throw new Refusal(errno)
}

/** TCP, UDP, SCTP and UDPLITE; ip_set_proto_with_ports. */
const WITH_PORTS: ReadonlySet<number> = new Set([6, 17, 132, 136])
const IPPROTO_ICMP = 1
const IPPROTO_ICMPV6 = 58

/** The element as the set keeps it: with what the type has no use for cleared. Refuses what the kernel refuses. */
function normalized(set: FakeIpset, element: FakeElement): FakeElement {
  const { type } = set
  if (type === 'bitmap:port') return { port: element.port ?? refuse(ERR.PROTOCOL) }
  const ip = addressIn(set, element.ip)
  if (type === 'hash:ip') return /^\0+$/.test(ip) ? refuse(ERR.HASH_ELEM) : { ip }
  const { protocol, prefix2 } = element
  let { port } = element
  if (protocol === undefined || port === undefined) return refuse(ERR.PROTOCOL)
  if (protocol === 0) return refuse(ERR.INVALID_PROTO)
  if (!WITH_PORTS.has(protocol) && protocol !== (set.family === 2 ? IPPROTO_ICMP : IPPROTO_ICMPV6)) port = 0
  if (type === 'hash:ip,port') return { ip, protocol, port }
  const ip2 = addressIn(set, element.ip2)
  if (type === 'hash:ip,port,ip') return { ip, protocol, port, ip2 }
  const bits = prefix2 ?? ip2.length * 8
  if (bits === 0 || bits > ip2.length * 8) return refuse(ERR.INVALID_CIDR)
  return { ip, protocol, port, ip2: masked(ip2, bits), prefix2: bits }
}

function addressIn({ family }: FakeIpset, ip: string | undefined): string {
  return ip?.length === (family === 2 ? 4 : 16) ? ip : refuse(ERR.PROTOCOL)
}

function masked(ip: string, bits: number): string {
  let text = ''
  for (let at = 0; at < ip.length; at++) {
    const kept = Math.min(8, Math.max(0, bits - at * 8))
    text += String.fromCharCode(ip.charCodeAt(at) & (0xff00 >> kept) & 0xff)
  }
  return text
}

export function elementKey({ ip, protocol, port, ip2, prefix2 }: FakeElement): string {
  return JSON.stringify([ip, protocol, port, ip2, prefix2])
}

/** Changes the set, or gives the errno with which the kernel leaves the element. */
export function addOrDelete(
  set: FakeIpset,
  element: FakeElement,
  verb: 'add' | 'replace' | 'delete',
): number {
  const value = normalized(set, element)
  const key = elementKey(value)
  if (verb === 'delete') return set.elements.delete(key) ? 0 : ERR.EXIST
  const isThere = set.elements.has(key)
  if (isThere && verb === 'add') return ERR.EXIST
  if (!isThere && set.type !== 'bitmap:port' && set.elements.size >= set.maxElements) return ERR.HASH_FULL
  set.elements.set(key, value)
  return 0
}
