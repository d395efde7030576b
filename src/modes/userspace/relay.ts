import type { Ip } from '../../base/ip.ts'
import type { Backend } from '../../model/frontend.ts'
import type { ServiceKey } from '../../model/service.ts'
import type { Balance, ListName } from './relay/balancer.ts'

/** PortFrontends.key and the address of the node on which it listens. */
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
