import type { Clock } from '../../base/clock.ts'
import { PersistentMap } from '../../base/collections.ts'
import { anyContains, type Cidr, FAMILIES, type Family, familyOf, type Ip } from '../../base/ip.ts'
import { IpsetClient } from '../../kernel/ipset/client.ts'
import { leftoversOf } from '../../kernel/ipset/grow.ts'
import { entryKey, type IpsetEntry, type IpsetListing } from '../../kernel/ipset/state.ts'
import { IpvsClient } from '../../kernel/ipvs/client.ts'
import {
  destinationKey,
  type ListedDestination,
  type RealServer,
  type ServerKey,
  serverKey,
  type VirtualAddress,
  type VirtualServer,
} from '../../kernel/ipvs/state.ts'
import { DummyClient } from '../../kernel/link/dummy.ts'
import { createNftClient, type NftClient, type ReadOptions } from '../../kernel/nft/client.ts'
import { DUMMY_DEVICE } from '../common/kube-proxy.ts'
import { tableOf } from '../common/tables.ts'
import { bothNamed, tablesNamed, withNftClient } from '../common/writers.ts'
import { type KernelAccess, type KernelSockets, openAll } from '../mode.ts'
import { observeChains } from './chains.ts'
import {
  allSetNames,
  entryAt,
  type NftSetName,
  NODE_PORT_SETS,
  nodePortEntry,
  type SetStem,
  setName,
} from './layout.ts'
import { DEFAULT_IPVS_OPTIONS, type IpvsOptions } from './settings.ts'
import {
  EMPTY_STATE,
  type IpvsState,
  type PlacedAddress,
  type PlacedEntry,
  type PlacedServer,
} from './state.ts'

/** The subsystems of the kernel that this mode writes to. */
export interface IpvsKernel {
  readonly nft: NftClient
  readonly ipset: IpsetClient
  readonly ipvs: IpvsClient
  readonly dummy: DummyClient
}

interface OpenKernel {
  readonly kernel: IpvsKernel
  /** The port id of the socket that commits to nf_tables. */
  readonly ownPortId: number
  readonly close: () => Promise<void>
}

/** Makes clients for four subsystems of the kernel, each with a socket of its own. Throws SystemError. */
export function openIpvsKernel(sockets: KernelSockets, clock: Clock): OpenKernel {
  const [transport, sets, generic, route] = openAll(sockets, ({ netfilter, generic, route }) => [
    netfilter(),
    netfilter(),
    generic(),
    route(),
  ])
  const ipset = new IpsetClient({ transport: sets, clock })
  const nft = createNftClient({ transport, clock, ipsets: ipset })
  const ipvs = new IpvsClient({ transport: generic, clock })
  const dummy = new DummyClient({ transport: route, clock })
  return {
    kernel: { nft, ipset, ipvs, dummy },
    ownPortId: transport.portId,
    close: async () => void (await Promise.all([nft.close(), ipset.close(), ipvs.close(), dummy.close()])),
  }
}

/** Makes the clients for the duration of `use`. */
export async function withIpvsKernel<T>(
  { sockets, clock }: KernelAccess,
  use: (kernel: IpvsKernel) => Promise<T>,
): Promise<T> {
  const { kernel, close } = openIpvsKernel(sockets, clock)
  try {
    return await use(kernel)
  } finally {
    await close()
  }
}

/** Tests whether our own table exists. No other program makes it: the mode runs, or ran and left its objects. */
export async function hasIpvsTable(context: KernelAccess): Promise<boolean> {
  const { tableName } = DEFAULT_IPVS_OPTIONS
  return await withNftClient(context, async client => (await tablesNamed(client, tableName)).length > 0)
}

export interface Seen {
  readonly state: IpvsState
  /** Virtual servers that are not ours. */
  readonly others: ReadonlySet<ServerKey>
  /** The generation of nf_tables. */
  readonly generation: number
  readonly unsettled: boolean
}

export interface ObserveKernelOptions
  extends Pick<IpvsOptions, 'rules' | 'tableName' | 'excludeCidrs'>,
    Pick<Records, 'remembered' | 'servers'>,
    ReadOptions {}

/** Reads all objects of ours, and only the names of other objects. */
export async function observeKernel(kernel: IpvsKernel, options: ObserveKernelOptions): Promise<Seen> {
  const { nft, ipset, ipvs, dummy } = kernel
  const { tableName: name, excludeCidrs, aside = false } = options
  const listing = await nft.list(bothNamed(name), { aside })
  const chains = await observeChains(kernel, options)
  const { headers } = await ipset.headers()
  const existing = new Set(headers.map(({ set }) => set.name))
  const names = allSetNames()
  const sets = await ipset.list(names.filter(name => existing.has(name)))
  const cutShort = new Set(leftoversOf(names, existing))
  const entries = placeEntries(sets)
  const ownership = ownershipBy({ ...options, entries, ruleset: listing.ruleset }, excludeCidrs)
  const servers: VirtualServer[] = []
  const others = new Set<ServerKey>()
  for (const server of await ipvs.servers()) {
    if (ownership.isRecorded(server)) servers.push(server)
    else others.add(serverKey(server))
  }
  const destinations = await ipvs.destinations(servers)
  const addresses = await dummy.addresses(DUMMY_DEVICE)
  const placed = new Map<string, PlacedServer>()
  for (const [i, server] of servers.entries())
    placed.set(serverKey(server), {
      server,
      destinations: keyed(destinations[i] ?? []),
      service: '',
      port: '',
    })
  const ours = (addresses ?? []).filter(ip => ownership.isOurAddress(ip))
  // If the record is empty but the device has addresses, another program emptied the record. Our virtual
  // servers then only look like those of another program.
  const isLost = (addresses?.length ?? 0) > 0 && !entries.values().some(({ set }) => RECORDS.has(set))
  return {
    others: isLost ? new Set() : others,
    state: {
      ...EMPTY_STATE,
      servers: PersistentMap.owning(placed),
      sets: new Map(
        [...sets, ...headers.filter(({ set }) => cutShort.has(set.name))].map(({ set }) => [set.name, set]),
      ),
      entries,
      addresses: PersistentMap.from(ours.map((ip): [string, PlacedAddress] => [ip, { ip, services: [] }])),
      device: addresses !== undefined,
      ruleset: listing.ruleset,
      chains: { kind: 'observed', observed: chains.observed },
    },
    generation: listing.generation,
    unsettled: listing.unsettled || chains.unsettled || chains.generation !== listing.generation,
  }
}

/** Reads all objects of IPVS mode that are ours, in a process that has none of its own. */
export async function readIpvsState(kernel: IpvsKernel): Promise<IpvsState> {
  return (await observeKernel(kernel, DEFAULT_IPVS_OPTIONS)).state
}

const RECORDS: ReadonlySet<string> = new Set(FAMILIES.map(family => setName('IPVS-IPS', family)))

function placeEntries(sets: readonly IpsetListing[]): PersistentMap<PlacedEntry> {
  const placed = new Map<string, PlacedEntry>()
  for (const { set, entries } of sets)
    for (const entry of entries)
      placed.set(entryKey(set.name, entry), { set: set.name, entry, services: NO_SERVICES })
  return PersistentMap.owning(placed)
}

const NO_SERVICES: readonly string[] = []

function keyed(listed: readonly ListedDestination[]): ReadonlyMap<string, RealServer> {
  const all = listed.map(({ destination }): [string, RealServer] => [
    destinationKey(destination),
    destination,
  ])
  return new Map(all.sort(([a], [b]) => (a < b ? -1 : 1)))
}

/**
 * Decides which virtual servers and addresses are ours. The sets record them, and our own tables record the
 * addresses that serve node ports. The records are filled before the objects are made, and emptied last, so
 * that the next start after a crash finds all objects. kube-proxy's IPVS mode keeps the same sets.
 */
export interface Ownership {
  /** Tests whether a virtual server is recorded and outside of `excludeCidrs`. */
  isOurServer(server: VirtualAddress): boolean
  /** Tests whether a virtual server is ours, or another program's with an address and port that we use. */
  isRecorded(server: VirtualAddress): boolean
  isOurAddress(ip: Ip): boolean
}

interface Lookup {
  has(key: string): boolean
}

interface Records extends Pick<IpvsState, 'entries' | 'ruleset'> {
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
    const { protocol, ip } = server
    if (servers?.has(serverKey(server)) === true) return true
    if (BY_ADDRESS_AND_PORT.some(stem => has(stem, ip, entryAt(server)))) return true
    // This is a private virtual server. ClusterIPs belong to no other program, unlike addresses from outside
    // the cluster.
    if (isOurAddress(ip) && clusterIps().has(ip)) return true
    const { all, local } = NODE_PORT_SETS[protocol]
    if (![all, local].some(stem => has(stem, ip, nodePortEntry(server)))) return false
    return protocol === 'SCTP' || nodePortIps[familyOf(ip)]().has(ip)
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
