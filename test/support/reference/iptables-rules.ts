import { execFile } from 'node:child_process'
import { promisify } from 'node:util'
import { finish } from '../../../src/base/clock.ts'
import type { NftFamily } from '../../../src/kernel/nft/state.ts'
import { printRule } from '../../../src/kernel/xt/print.ts'
import type { XtRule } from '../../../src/kernel/xt/rule.ts'
import type { XtPlace } from '../../../src/kernel/xt/scope.ts'
import { isRefusal } from '../../../src/model/fields.ts'
import type { FrontendTable } from '../../../src/model/frontend.ts'
import { parseObject } from '../../../src/model/parse.ts'
import { resolve } from '../../../src/model/resolve.ts'
import { applyEvents, EMPTY_SNAPSHOT, type SourceEvent } from '../../../src/model/snapshot.ts'
import { fixedChains, jumpsOf } from '../../../src/modes/iptables/chains.ts'
import { endpointsOf, rulesOfService } from '../../../src/modes/iptables/render.ts'
import type { IptablesOptions } from '../../../src/modes/iptables/settings.ts'
import { LARGE_ENDPOINTS, staticsOf } from '../../../src/modes/iptables/state.ts'
import { NODE_ADDRESSES } from '../lab/address.ts'
import { IPTABLES, ip, iptablesOptionsOf, type PipelineConfig, resolveOptionsOf } from '../pipeline.ts'
import { LOCAL_IPS } from '../scenario.ts'
import type { Api, KubeObject } from './api.ts'
import { readSave, type SavedChains } from './iptables-text.ts'
import type { ProxyConfig } from './kube-proxy-peer.ts'
import { proxyConfigOf } from './scenario-cluster.ts'

const run = promisify(execFile)

/** Of a scenario, for this mode: NodePorts answer everywhere by default, and the primary addresses are named by themselves. */
export function inIptables(config: PipelineConfig): PipelineConfig {
  const addresses = (config.nodePortAddresses ?? []).flatMap(text => (text === 'primary' ? PRIMARY : [text]))
  return { ...config, nodePortAddresses: addresses }
}

const PRIMARY: readonly string[] = [
  `${NODE_ADDRESSES.find(address => !address.includes(':'))}/32`,
  `${NODE_ADDRESSES.find(address => address.includes(':'))}/128`,
]

/** `config` as inIptables gives it. */
export function iptablesConfigOf(config: PipelineConfig): ProxyConfig {
  const { masqueradeAll = false, masqueradeBit = 14 } = config
  const { nftables: _, ...rest } = proxyConfigOf(config)
  return {
    ...rest,
    mode: 'iptables',
    iptables: { masqueradeAll, masqueradeBit, minSyncPeriod: '10ms', syncPeriod: '30s' },
  }
}

/** As kube-proxy finds them in the laboratory: its counters are there, and the sysctl is not set. */
export function countingOptionsOf(config: PipelineConfig): IptablesOptions {
  return { ...iptablesOptionsOf(config), nfacct: { invalidDropped: true, localhostAccepted: true } }
}

/** Everything that a proxy looks at. */
export async function objectsIn(api: Api): Promise<readonly KubeObject[]> {
  return (
    await Promise.all([
      api.list('v1', 'Node'),
      api.list('v1', 'Service'),
      api.list('discovery.k8s.io/v1', 'EndpointSlice'),
    ])
  ).flat()
}

export function tableOfObjects(objects: readonly unknown[], config: PipelineConfig): FrontendTable {
  const localIps = [...LOCAL_IPS, '127.0.0.1', '::1'].map(ip)
  const events: SourceEvent[] = [{ kind: 'LocalIps', value: localIps }]
  for (const object of objects) {
    const parsed = parseObject(object)
    if (parsed !== undefined && !isRefusal(parsed)) events.push(parsed)
  }
  const options = { ...resolveOptionsOf(config), ...IPTABLES.resolving }
  return finish(resolve(options, undefined, applyEvents(EMPTY_SNAPSHOT, events))).table
}

/** The rules for a table, as iptables-save would print them. */
export function ourChains(table: FrontendTable, options: IptablesOptions): SavedChains {
  const chains: SavedChains = new Map()
  const endpoints = [...table.services.values()].reduce((sum, service) => sum + endpointsOf(service), 0)
  const statics = staticsOf(options, table, endpoints > LARGE_ENDPOINTS)
  const rulesIn = (place: XtPlace, chain: string): string[] => {
    const name = `${place.family} ${place.table} ${chain}`
    const known = chains.get(name) ?? []
    chains.set(name, known)
    return known
  }
  const add = (place: XtPlace, chain: string, rules: readonly XtRule[]): void => {
    rulesIn(place, chain).push(...rules.map(rule => printRule(rule, place.family)))
  }
  const fixed = fixedChains(statics)
  for (const chain of fixed) add(chain, chain.name, chain.rules)
  for (const service of table.services.values()) {
    const its = rulesOfService(service, statics)
    for (const entry of its.entries) add(entry, entry.chain, [entry.rule])
    for (const chain of its.chains) add(chain, chain.name, [...chain.rules, ...chain.last])
  }
  for (const chain of fixed) add(chain, chain.name, chain.last)
  for (const jump of jumpsOf(statics)) {
    rulesIn(jump, jump.chain).unshift(printRule(jump.rule, jump.family))
    if (jump.rule.target?.kind === 'jump') rulesIn(jump, jump.rule.target.chain)
  }
  return chains
}

const PROGRAMS: Readonly<Record<NftFamily, string>> = { ip: 'iptables-nft-save', ip6: 'ip6tables-nft-save' }

/** What is in the network namespace that this thread is in when it is called. */
export async function savedChains(): Promise<SavedChains> {
  const chains: SavedChains = new Map()
  const families = ['ip', 'ip6'] as const
  const saved = await Promise.all(families.map(family => run(PROGRAMS[family], [], { maxBuffer: 1 << 28 })))
  saved.forEach(({ stdout, stderr }, index) => {
    if (stderr !== '') throw new Error(`iptables-nft-save: ${stderr}`)
    readSave(chains, families[index] ?? 'ip', stdout)
  })
  return chains
}
