import { type Family, formatIpPort } from '../../base/ip.ts'
import { readU16be } from '../../base/octets.ts'
import type { NftClient } from '../../kernel/nft/client.ts'
import type { Table } from '../../kernel/nft/state.ts'
import type { BalancePolicy } from '../../model/service.ts'
import type { TrafficCount } from '../../telemetry/connection-metrics.ts'
import { type ReadRows, readCounter, readGauge } from '../../telemetry/metric-set.ts'
import { forwarderMetrics } from '../common/forwarder/forwarder-set.ts'
import { CHAIN_LOCALHOST } from '../common/rules.ts'
import { LAYOUTS } from '../common/tables.ts'
import { ENDPOINTS_MAPS, type Ids, idOf } from './layout.ts'
import type { LocalhostForwarders } from './localhost.ts'
import type { NftablesState } from './state.ts'

/** Counts new connections by the counters of both tables, if they have any (NftablesOptions.connectionCounters). */
export async function readConnections(
  client: NftClient,
  state: NftablesState,
): Promise<readonly TrafficCount[]> {
  const found: TrafficCount[] = []
  for (const table of state.ruleset.tables) {
    const maps = [...table.sets.values()].filter(set => ENDPOINTS_MAPS.has(set.name) && set.counted === true)
    if (maps.length === 0) continue
    const { family, name } = table
    const ports = portsById(state.allocations[family].ids)
    const endpoints = endpointsByKey(table)
    for (const { name: set } of maps)
      await client.counters({ table: { family, name }, set }, (key, connections) => {
        const element = `${set} ${key}`
        const endpoint = endpoints.get(element)
        const port = ports.get(idOf(key))
        // The kernel and the state differ here because the element is about to be removed or was just added.
        if (endpoint === undefined || port === undefined) return
        found.push({ element: `${family} ${element}`, port, endpoint, connections })
      })
  }
  return found
}

function portsById({ byPort }: Ids): ReadonlyMap<number, string> {
  return new Map(byPort.entries().map(([port, id]) => [id, port]))
}

function endpointsByKey({ elements }: Table): ReadonlyMap<string, string> {
  const endpoints = new Map<string, string>()
  for (const group of elements.values()) {
    for (const { set, key, data } of group) {
      if (!ENDPOINTS_MAPS.has(set) || typeof data !== 'string') continue
      endpoints.set(`${set} ${key}`, formatIpPort(data.slice(0, -4), readU16be(data, data.length - 4)))
    }
  }
  return endpoints
}

/** Gives the number of service ports by policy; none where all are balanced at random. */
export function balanceMetrics(state: NftablesState | undefined): ReadRows {
  const ports = new Map<BalancePolicy, number>()
  for (const service of state?.frontends?.services.values() ?? [])
    for (const { balance } of service.ports)
      if (balance !== undefined) ports.set(balance.policy, (ports.get(balance.policy) ?? 0) + 1)
  if (ports.size === 0) return {}
  return {
    kprobe_balanced_ports: readGauge(
      'Service ports, by family, that are not balanced equally and at random, by kprobe.io/balance.',
      () => [...ports].map(([policy, count]) => [{ policy }, count] as const),
      'policy',
    ),
  }
}

/** Gives kube-proxy's metrics of node ports at localhost, and those of the forwarders; none where they are not served there. */
export async function localhostMetrics(
  client: Pick<NftClient, 'ruleCounters'>,
  state: NftablesState | undefined,
  { listeners, failures, counts }: Pick<LocalhostForwarders, 'listeners' | 'failures' | 'counts'>,
): Promise<ReadRows> {
  const families = state?.frontends?.forwardedAtLocalhost ?? []
  if (state === undefined || families.length === 0) return {}
  const byFamily = (values: Readonly<Record<Family, number>>) =>
    families.map(ip_family => [{ ip_family }, values[ip_family]] as const)
  const rejected = await rejectedPackets(client, state, families)
  return {
    kubeproxy_nftables_localhost_nodeport_listeners: readGauge(
      'Sockets that receive connections to node ports at localhost.',
      () => byFamily(listeners),
      'ip_family',
    ),
    kubeproxy_nftables_localhost_nodeport_listener_creation_failures_total: readCounter(
      'Failed attempts to listen for a node port at localhost.',
      () => byFamily(failures),
      'ip_family',
    ),
    kubeproxy_nftables_localhost_nodeport_rejected_packets_total: readCounter(
      'Packets to node ports at localhost that were rejected because the relay has no such protocol.',
      () => rejected,
      'ip_family',
      'protocol',
    ),
    ...forwarderMetrics(counts),
  }
}

async function rejectedPackets(
  client: Pick<NftClient, 'ruleCounters'>,
  { ruleset }: NftablesState,
  families: readonly Family[],
) {
  const values: [labels: { ip_family: Family; protocol: 'SCTP' }, packets: number][] = []
  for (const { family, name: table } of ruleset.tables) {
    const { model } = LAYOUTS[family]
    if (!families.includes(model)) continue
    const rules = await client.ruleCounters({ family, table, chain: CHAIN_LOCALHOST })
    const packets = rules.reduce((sum, { packets }) => sum + Number(packets), 0)
    values.push([{ ip_family: model, protocol: 'SCTP' }, packets])
  }
  return values
}
