import { formatIp, type Ip } from '../../base/ip.ts'
import type { IpsetHeader } from '../../kernel/ipset/state.ts'
import { destinationKey, sameDestination, sameSettings, serverKey } from '../../kernel/ipvs/key.ts'
import type { ListedDestination, VirtualServer } from '../../kernel/ipvs/state.ts'
import type { Ownership } from './ownership.ts'
import type { IpvsState, PlacedServer } from './state.ts'

/** The first difference between the kernel and the applied state; undefined for none. Cheap enough for every period. */
export type Digest = string | undefined

export function digestServers(
  { servers }: IpvsState,
  listed: readonly VirtualServer[],
  ownership: Ownership,
): Digest {
  let found = 0
  for (const server of listed) {
    const key = serverKey(server)
    const left = servers.get(key)
    if (left === undefined) {
      if (ownership.isOurServer(server)) return `virtual server ${key} was added`
      continue
    }
    if (!sameSettings(left.server, server)) return `virtual server ${key} was changed`
    found++
  }
  return found === servers.size ? undefined : `${servers.size - found} virtual servers were deleted`
}

/** Compares the sets. An exchange of entries for the same number of others is not detected. */
export function digestSets({ sets }: IpvsState, headers: readonly IpsetHeader[], counts: SetCounts): Digest {
  const found = new Map(headers.map(header => [header.set.name, header] as const))
  for (const { name, type } of sets.values()) {
    const header = found.get(name)
    if (header === undefined || header.set.type !== type) return `ipset ${name} was deleted`
    const left = counts.get(name) ?? 0
    if (header.elements !== left) return `ipset ${name} has ${header.elements} entries instead of ${left}`
  }
  return undefined
}

export function digestDestinations(
  { server, destinations }: PlacedServer,
  listed: readonly ListedDestination[],
): Digest {
  const key = serverKey(server)
  const found = new Map(listed.map(({ destination }) => [destinationKey(destination), destination] as const))
  for (const [name, destination] of found) {
    const left = destinations.get(name)
    if (left === undefined) return `real server ${name} of ${key} was added`
    if (!sameDestination(left, destination)) return `real server ${name} of ${key} was changed`
  }
  for (const [name, { weight }] of destinations) {
    // The upkeep deletes draining real servers.
    if (weight !== 0 && !found.has(name)) return `real server ${name} of ${key} was deleted`
  }
  return undefined
}

/** Compares the addresses. `present` is undefined where there is no device. */
export function digestAddresses(
  { addresses, device }: IpvsState,
  present: readonly Ip[] | undefined,
  ownership: Ownership,
): Digest {
  if (present === undefined) return device ? 'the device was deleted' : undefined
  let found = 0
  for (const ip of present) {
    if (addresses.has(ip)) found++
    else if (ownership.isOurAddress(ip)) return `address ${formatIp(ip)} was added`
  }
  return found === addresses.size ? undefined : `${addresses.size - found} addresses were deleted`
}

/** The number of entries by name of set. */
export type SetCounts = ReadonlyMap<string, number>

/** Gives the number of entries of each set: those of a state that was read are counted here. */
export function countEntries({ entries, rendering }: IpvsState): SetCounts {
  if (rendering !== undefined) return rendering.entries
  const counts = new Map<string, number>()
  for (const { set } of entries.values()) counts.set(set, (counts.get(set) ?? 0) + 1)
  return counts
}
