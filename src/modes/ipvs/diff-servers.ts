import { anyContains, type Cidr } from '../../base/cidr.ts'
import { PersistentMap } from '../../base/persistent-map.ts'
import { Pauses, type Steps } from '../../base/steps.ts'
import { sameDestination, sameSettings } from '../../kernel/ipvs/key.ts'
import type { IpvsOperation } from '../../kernel/ipvs/operation.ts'
import type { RealServer } from '../../kernel/ipvs/state.ts'
import type { PlacedServer } from './state.ts'

interface ServersDiff {
  readonly add: readonly IpvsOperation[]
  readonly remove: readonly IpvsOperation[]
  /** The servers of `to`, with the real servers that drain or must stay. */
  readonly after: PersistentMap<PlacedServer>
}

interface ServerPiles {
  readonly add: IpvsOperation[]
  readonly remove: IpvsOperation[]
  /** Servers with draining real servers. */
  readonly draining: [string, PlacedServer][]
}

/**
 * Compares virtual servers. A virtual server is changed in place, because a new one would end its
 * connections. Real servers that a server loses stay with weight 0 as long as their connections last. Those
 * of UDP are deleted, because their clients would continue to send to a removed endpoint. In excludeCidrs
 * only virtual servers that this process made are deleted.
 */
export function* diffServers(
  from: PersistentMap<PlacedServer>,
  to: PersistentMap<PlacedServer>,
  excludeCidrs: readonly Cidr[],
): Steps<ServersDiff> {
  const piles: ServerPiles = { add: [], remove: [], draining: [] }
  const pauses = new Pauses()
  for (const [key, before, after] of PersistentMap.differences(from, to)) {
    if (pauses.due()) yield
    if (after === undefined) {
      if (before !== undefined && !isExcluded(before, excludeCidrs))
        piles.remove.push({ verb: 'delete-server', server: before.server, group: before.service })
      continue
    }
    if (before === undefined || !sameSettings(before.server, after.server))
      piles.add.push({
        verb: 'set-server',
        server: after.server,
        isNew: before === undefined,
        group: after.service,
      })
    const drained = diffDestinations(before?.destinations ?? NONE, after, piles)
    if (drained.length > 0) piles.draining.push([key, withDrained(after, drained)])
  }
  return { add: piles.add, remove: piles.remove, after: to.with(piles.draining) }
}

/** Whether a virtual server is excluded. A virtual server that was read from the kernel has no Service. */
function isExcluded({ server, service }: PlacedServer, excludeCidrs: readonly Cidr[]): boolean {
  return service === '' && anyContains(excludeCidrs, server.ip)
}

const NONE: ReadonlyMap<string, RealServer> = new Map()

type Keyed = readonly [string, RealServer]

/** Compares real servers. Gives those that stay although they are not wanted. */
function diffDestinations(
  before: PlacedServer['destinations'],
  { server, destinations, service: group }: PlacedServer,
  { add, remove }: ServerPiles,
): readonly Keyed[] {
  if (before === destinations) return []
  for (const [key, destination] of destinations) {
    const present = before.get(key)
    if (present === undefined || !sameDestination(present, destination))
      add.push({ verb: 'set-destination', server, destination, isNew: present === undefined, group })
  }
  const drained: Keyed[] = []
  for (const [key, destination] of before) {
    if (destinations.has(key)) continue
    if (server.protocol === 'UDP') {
      remove.push({ verb: 'delete-destination', server, destination, group })
      continue
    }
    const quiet = { ...destination, weight: 0 }
    drained.push([key, quiet])
    if (destination.weight !== 0)
      remove.push({ verb: 'set-destination', server, destination: quiet, isNew: false, group })
  }
  return drained
}

function withDrained(wanted: PlacedServer, drained: readonly Keyed[]): PlacedServer {
  const all = [...wanted.destinations, ...drained].sort(([a], [b]) => (a < b ? -1 : 1))
  return { ...wanted, destinations: new Map(all) }
}
