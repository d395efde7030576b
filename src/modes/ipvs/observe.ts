import { FAMILIES } from '../../base/ip.ts'
import { PersistentMap } from '../../base/persistent-map.ts'
import { entryKey } from '../../kernel/ipset/entry-key.ts'
import { leftoversOf } from '../../kernel/ipset/grow.ts'
import type { IpsetListing } from '../../kernel/ipset/state.ts'
import { destinationKey, serverKey } from '../../kernel/ipvs/key.ts'
import type { ListedDestination, RealServer, ServerKey, VirtualServer } from '../../kernel/ipvs/state.ts'
import { NFT_FAMILIES } from '../common/family.ts'
import { observeChains } from './chain-scope.ts'
import type { IpvsKernel } from './kernel.ts'
import { ownershipBy, type Records } from './ownership.ts'
import { allSetNames, setName } from './set-names.ts'
import type { IpvsOptions } from './settings.ts'
import {
  EMPTY_STATE,
  type IpvsState,
  type PlacedAddress,
  type PlacedEntry,
  type PlacedServer,
} from './state.ts'

export interface Seen {
  readonly state: IpvsState
  /** Virtual servers that are not ours. */
  readonly others: ReadonlySet<ServerKey>
  /** The generation of nf_tables. */
  readonly generation: number
  readonly unsettled: boolean
}

export interface ObserveOptions
  extends Pick<IpvsOptions, 'rules' | 'tableName' | 'deviceName' | 'excludeCidrs'>,
    Pick<Records, 'remembered' | 'servers'> {}

/** Reads all objects of ours, and only the names of other objects. */
export async function observeKernel(kernel: IpvsKernel, options: ObserveOptions): Promise<Seen> {
  const { nft, ipset, ipvs, dummy } = kernel
  const { tableName: name, deviceName, excludeCidrs } = options
  const listing = await nft.list(NFT_FAMILIES.map(family => ({ family, name })))
  const chains = await observeChains(kernel, options.rules)
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
  const addresses = await dummy.addresses(deviceName)
  const placed = new Map<string, PlacedServer>()
  for (const [i, server] of servers.entries())
    placed.set(serverKey(server), { server, destinations: keyed(destinations[i] ?? []), service: '' })
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

const RECORDS: ReadonlySet<string> = new Set(FAMILIES.map(family => setName('IPVS-IPS', family)))

function placeEntries(sets: readonly IpsetListing[]): PersistentMap<PlacedEntry> {
  const placed = new Map<string, PlacedEntry>()
  for (const { set, entries } of sets) {
    for (const entry of entries)
      placed.set(entryKey(set.name, entry), { set: set.name, entry, services: NO_SERVICES })
  }
  return PersistentMap.owning(placed)
}

const NO_SERVICES: readonly string[] = []

/** Sorts real servers, by destinationKey. */
function keyed(listed: readonly ListedDestination[]): ReadonlyMap<string, RealServer> {
  const all = listed.map(({ destination }): [string, RealServer] => [
    destinationKey(destination),
    destination,
  ])
  return new Map(all.sort(([a], [b]) => (a < b ? -1 : 1)))
}
