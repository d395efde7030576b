import type { Ip } from '../../base/ip.ts'
import { entryKey } from '../../kernel/ipset/entry-key.ts'
import type { IpsetEntry } from '../../kernel/ipset/state.ts'
import type { ServerKey } from '../../kernel/ipvs/state.ts'
import type { Element, NftFamily } from '../../kernel/nft/state.ts'
import type { ServiceFrontends } from '../../model/frontend.ts'
import { objectText, type Refusal } from '../../model/refusal.ts'
import { LAYOUTS, NFT_FAMILIES } from '../common/family.ts'
import { addEntries, addressEntry, elementsOf, healthCheckElements } from './elements.ts'
import { type PlacedPort, type Placing, placePorts } from './places.ts'
import { schedulerRefusal, serversOf } from './servers.ts'
import type { PlacedServer } from './state.ts'

/** All objects that one Service needs in the kernel. */
export interface ServiceRendering {
  readonly servers: ReadonlyMap<ServerKey, PlacedServer>
  /** Entries by entryKey. */
  readonly entries: ReadonlyMap<string, SetEntry>
  /** Addresses to bind to the dummy device. */
  readonly addresses: ReadonlySet<Ip>
  readonly elements: Readonly<Record<NftFamily, readonly Element[]>>
  readonly refusals: readonly Refusal[]
}

interface SetEntry {
  readonly set: string
  readonly entry: IpsetEntry
}

const NOTHING: ServiceRendering = {
  servers: new Map(),
  entries: new Map(),
  addresses: new Set(),
  elements: { ip: [], ip6: [] },
  refusals: [],
}

/** Renders one Service. Pure: equal Services in equal surroundings give equal results. */
export function renderService(service: ServiceFrontends | undefined, placing: Placing): ServiceRendering {
  if (service === undefined) return NOTHING
  const { surroundings } = placing
  const placed = placePorts(service, placing)
  const servers = new Map<ServerKey, PlacedServer>()
  const entries = new Map<string, SetEntry>()
  const elements: Record<NftFamily, Element[]> = { ip: [], ip6: [] }
  const put = (set: string, entry: IpsetEntry) => entries.set(entryKey(set, entry), { set, entry })
  for (const port of placed) {
    for (const [key, server] of serversOf(port, surroundings)) servers.set(key, server)
    elements[port.port.family === 'IPv4' ? 'ip' : 'ip6'].push(...elementsOf(port))
  }
  addEntries(service, placed, put)
  const addresses = addressesOf(service, placed, surroundings.localIps)
  for (const ip of addresses) {
    const { set, entry } = addressEntry(ip)
    put(set, entry)
  }
  for (const family of NFT_FAMILIES)
    elements[family].push(...healthCheckElements(service, { family: LAYOUTS[family].model, addresses }))
  return { servers, entries, addresses, elements, refusals: refusalsOf(service, placed, placing) }
}

/** Gives the addresses to bind. An address of another device needs no binding. */
function addressesOf(
  { clusterIps }: ServiceFrontends,
  placed: readonly PlacedPort[],
  localIps: ReadonlySet<Ip>,
): ReadonlySet<Ip> {
  const addresses = new Set<Ip>()
  for (const ip of clusterIps) if (!localIps.has(ip)) addresses.add(ip)
  for (const { places } of placed)
    for (const { ip, frontend } of places)
      if (frontend.ip !== undefined && !localIps.has(ip)) addresses.add(ip)
  return addresses
}

function refusalsOf(
  { service, ports }: ServiceFrontends,
  placed: readonly PlacedPort[],
  { surroundings }: Placing,
): readonly Refusal[] {
  const scheduler = schedulerRefusal(service, ports, surroundings)
  const homeless = placed.find(port => port.homeless)
  const occupied = placed.find(port => port.occupied !== undefined)?.occupied
  return [
    ...(scheduler === undefined ? [] : [scheduler]),
    ...(homeless === undefined ? [] : [homelessRefusal(service, homeless)]),
    ...(occupied === undefined ? [] : [occupiedRefusal(service, occupied)]),
  ]
}

function occupiedRefusal(service: string, key: ServerKey): Refusal {
  return {
    object: objectText('Service', service),
    field: 'spec.ports',
    value: key,
    reason:
      'another program has a virtual server at this address and port; kprobe keeps that server and does not serve the port',
  }
}

function homelessRefusal(service: string, { port }: PlacedPort): Refusal {
  return {
    object: objectText('Service', service),
    field: 'spec.externalTrafficPolicy',
    value: 'Local',
    reason: `${port.displayName} (${port.family}) has no ClusterIP: pods and processes of this node also reach only its endpoints on this node`,
  }
}
