import { anyContains, type Cidr } from '../../base/cidr.ts'
import { type Family, familyOf, type Ip } from '../../base/ip.ts'
import { entryKey } from '../../kernel/ipset/entry-key.ts'
import type { IpsetEntry } from '../../kernel/ipset/state.ts'
import { serverKey } from '../../kernel/ipvs/key.ts'
import type { IpvsProtocol, VirtualAddress } from '../../kernel/ipvs/state.ts'
import { tableOf } from '../common/family.ts'
import { PROTOCOL_NUMBERS } from '../common/octet-keys.ts'
import type { NftSetName } from './layout.ts'
import { type SetStem, setName } from './set-names.ts'
import type { IpvsState } from './state.ts'

/**
 * Decides which virtual servers and addresses are ours. The sets record them, and our own tables record the
 * addresses that serve node ports. The records are filled before the objects are made, and emptied last, so
 * that the next start after a crash finds all objects. kube-proxy's IPVS mode keeps the same sets.
 */
export interface Ownership {
  /** Whether a virtual server is recorded and outside of `excludeCidrs`. */
  isOurServer(server: VirtualAddress): boolean
  /** Whether the virtual server is ours, or one of another program at a place of ours. */
  isRecorded(server: VirtualAddress): boolean
  /** Whether an address of the dummy device is ours. */
  isOurAddress(ip: Ip): boolean
}

interface Lookup {
  has(key: string): boolean
}

export interface Records extends Pick<IpvsState, 'entries' | 'ruleset'> {
  /** The keys of entries that this process put into the sets: they identify its objects even if the sets were emptied. */
  readonly remembered?: Lookup
  /** The virtual servers that this process found to be ours, or made; undefined before its first read. */
  readonly servers?: Lookup | undefined
}

const BY_ADDRESS_AND_PORT: readonly SetStem[] = [
  'CLUSTER-IP',
  'EXTERNAL-IP',
  'EXTERNAL-IP-LOCAL',
  'LOAD-BALANCER',
]

const NODE_PORTS_BY_ADDRESS: readonly SetStem[] = ['NODE-PORT-SCTP-HASH', 'NODE-PORT-LOCAL-SCTP-HASH']

const NODE_PORTS: Readonly<Record<Exclude<IpvsProtocol, 'SCTP'>, readonly SetStem[]>> = {
  TCP: ['NODE-PORT-TCP', 'NODE-PORT-LOCAL-TCP'],
  UDP: ['NODE-PORT-UDP', 'NODE-PORT-LOCAL-UDP'],
}

export function ownershipBy(records: Records, excludeCidrs: readonly Cidr[]): Ownership {
  const { entries, remembered, servers } = records
  const has = (stem: SetStem, ip: Ip, entry: IpsetEntry): boolean => {
    const key = entryKey(setName(stem, familyOf(ip)), entry)
    return entries.has(key) || remembered?.has(key) === true
  }
  const clusterIps = once(() => clusterIpsIn(records))
  const nodePortIps = {
    IPv4: once(() => nodePortIpsIn(records, 'IPv4')),
    IPv6: once(() => nodePortIpsIn(records, 'IPv6')),
  }
  const isOurAddress = (ip: Ip): boolean => has('IPVS-IPS', ip, { ip })
  const isRecorded = (server: VirtualAddress): boolean => {
    const { protocol, ip, port } = server
    if (servers?.has(serverKey(server)) === true) return true
    const entry = { ip, protocol: PROTOCOL_NUMBERS[protocol], port }
    if (BY_ADDRESS_AND_PORT.some(stem => has(stem, ip, entry))) return true
    // This is a private virtual server. ClusterIPs belong to no other program, unlike addresses from outside
    // the cluster.
    if (isOurAddress(ip) && clusterIps().has(ip)) return true
    if (protocol === 'SCTP') return NODE_PORTS_BY_ADDRESS.some(stem => has(stem, ip, entry))
    const isNodePort = NODE_PORTS[protocol].some(stem => has(stem, ip, { port }))
    return isNodePort && nodePortIps[familyOf(ip)]().has(ip)
  }
  return {
    isOurAddress,
    isRecorded,
    isOurServer: server => !anyContains(excludeCidrs, server.ip) && isRecorded(server),
  }
}

function once<T>(make: () => T): () => T {
  let made: { readonly value: T } | undefined
  return () => {
    made ??= { value: make() }
    return made.value
  }
}

/** Gives the addresses of all ClusterIP Services. */
export function clusterIpsIn({ entries }: Pick<Records, 'entries'>): Lookup {
  const names = new Set([setName('CLUSTER-IP', 'IPv4'), setName('CLUSTER-IP', 'IPv6')])
  const ips = new Set<Ip>()
  for (const { set, entry } of entries.values())
    if (names.has(set) && entry.ip !== undefined) ips.add(entry.ip)
  return ips
}

const NODEPORT_IPS: NftSetName = 'nodeport-ips'
const ANY: Lookup = { has: () => true }

/**
 * Gives the node-port addresses that a table records. kube-proxy has no table, and a mode that retires has no
 * such set in its table. A process without other knowledge therefore treats node ports at all addresses as
 * leftovers of these.
 */
function nodePortIpsIn({ ruleset, servers }: Records, family: Family): Lookup {
  const table = tableOf(ruleset, family === 'IPv4' ? 'ip' : 'ip6')
  if (table === undefined || !table.sets.has(NODEPORT_IPS)) return servers === undefined ? ANY : NOWHERE
  const ips = new Set<Ip>()
  for (const group of table.elements.values())
    for (const { set, key } of group) if (set === NODEPORT_IPS) ips.add(key)
  return ips
}

const NOWHERE: Lookup = { has: () => false }
