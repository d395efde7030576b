import { PersistentMap } from '../../../base/collections.ts'
import type { Ip } from '../../../base/ip.ts'
import type { Backend } from '../../../model/frontend.ts'
import type { ServiceKey } from '../../../model/service.ts'
import type { PlanLine } from '../../../reconcile/dataplane.ts'
import type { Balance, ListName } from './balancer.ts'

/** PortFrontends.key, a space, and where it listens: the address, with the port if the relay chooses it. */
export type RelayKey = string

/** The relay of one Service port: the lists that have a listener, and the endpoints of each. */
export interface Relay {
  readonly key: RelayKey
  /** PortFrontends.displayName */
  readonly displayName: string
  readonly service: ServiceKey
  readonly protocol: 'TCP' | 'UDP'
  /** One of this node's addresses. */
  readonly address: Ip
  /** The port of the only listener; absent where the kernel chooses a port for each. */
  readonly port?: number
  readonly lists: readonly ListName[]
  readonly balance: Balance
}

/** Whether two relays have the same endpoints and listeners. */
export function sameRelay(a: Relay, b: Relay): boolean {
  if (a === b) return true
  return (
    a.key === b.key &&
    a.balance.affinityTimeoutS === b.balance.affinityTimeoutS &&
    a.lists.length === b.lists.length &&
    a.lists.every((list, at) => list === b.lists[at]) &&
    sameBackends(a.balance.cluster, b.balance.cluster) &&
    sameBackends(a.balance.local, b.balance.local)
  )
}

function sameBackends(a: readonly Backend[], b: readonly Backend[]): boolean {
  if (a === b) return true
  return a.length === b.length && a.every((one, at) => one.ip === b[at]?.ip && one.port === b[at]?.port)
}

/** What a commit changes of the relays of this process. */
export interface RelayChanges {
  /** Relays to open, or to give other endpoints. */
  readonly put: readonly Relay[]
  /** Relays to close. */
  readonly remove: readonly Relay[]
  /** A line for each. */
  readonly lines: readonly PlanLine[]
}

export function diffRelays(from: PersistentMap<Relay>, to: PersistentMap<Relay>): RelayChanges {
  const put: Relay[] = []
  const remove: Relay[] = []
  const lines: PlanLine[] = []
  for (const [, before, relay] of PersistentMap.differences(from, to)) {
    if (before !== undefined && relay !== undefined && sameRelay(before, relay)) continue
    if (relay !== undefined) put.push(relay)
    else if (before !== undefined) remove.push(before)
    const one = relay ?? before
    const verb = relay === undefined ? 'remove' : before === undefined ? 'add' : 'change'
    if (one !== undefined) lines.push({ verb, object: relayText(one), service: one.service })
  }
  return { put, remove, lines }
}

/**
 * Describes a relay: `relay TCP ns/web:http at 192.168.0.2 (cluster) to 3 endpoints`. A port that the relay
 * chooses is in the text.
 */
function relayText({ key, protocol, lists, balance, port }: Relay): string {
  const place = key.slice(key.lastIndexOf(' ') + 1)
  const name = key.slice(0, key.lastIndexOf(`/${protocol}/`))
  const count = new Set([
    ...(lists.includes('cluster') ? balance.cluster : []),
    ...(lists.includes('local') ? balance.local : []),
  ]).size
  const which = port === undefined ? ` (${lists.join(', ')})` : ''
  return `relay ${protocol} ${name} at ${place}${which} to ${count} endpoints`
}
