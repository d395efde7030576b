import { finish, type Steps, systemClock } from '../../src/base/clock.ts'
import { assert } from '../../src/base/errors.ts'
import { type Family, familyOf, type Ip, parseCidr, parseIp } from '../../src/base/ip.ts'
import { createNftClient, type NftClient } from '../../src/kernel/nft/client.ts'
import { isRefusal, type Refusal } from '../../src/model/fields.ts'
import type { FrontendTable } from '../../src/model/frontend.ts'
import type { NodePortSelection, ResolveOptions } from '../../src/model/node-context.ts'
import { parseObject, watchedIdentity } from '../../src/model/parse.ts'
import { type Resolved, resolve } from '../../src/model/resolve.ts'
import {
  applyEvents,
  EMPTY_SNAPSHOT,
  type SnapshotEvent,
  type SourceEvent,
} from '../../src/model/snapshot.ts'
import type { DetectorOption } from '../../src/modes/common/detector.ts'
import { renderIptablesState } from '../../src/modes/iptables/render.ts'
import { DEFAULT_IPTABLES_OPTIONS, type IptablesOptions } from '../../src/modes/iptables/settings.ts'
import { EMPTY_STATE as EMPTY_IPTABLES_STATE, type IptablesState } from '../../src/modes/iptables/state.ts'
import { renderIpvsState } from '../../src/modes/ipvs/render.ts'
import { DEFAULT_IPVS_OPTIONS, type IpvsOptions } from '../../src/modes/ipvs/settings.ts'
import { EMPTY_STATE as EMPTY_IPVS_STATE, type IpvsState } from '../../src/modes/ipvs/state.ts'
import { createNftablesPlane } from '../../src/modes/nftables/plane.ts'
import { renderState } from '../../src/modes/nftables/render.ts'
import { DEFAULT_NFTABLES_OPTIONS, type NftablesOptions } from '../../src/modes/nftables/settings.ts'
import { EMPTY_STATE, type NftablesPlan, type NftablesState } from '../../src/modes/nftables/state.ts'
import { NETLINK_NETFILTER } from '../../src/netlink/constants.ts'
import { openNetlink } from '../../src/netlink/native.ts'
import type { Dataplane, Plan } from '../../src/reconcile/dataplane.ts'

/** The parts of a KubeProxyConfiguration that decide about packets, under its names and with its defaults. */
export interface PipelineConfig {
  readonly detectLocalMode?: 'ClusterCIDR' | 'NodeCIDR' | 'BridgeInterface' | 'InterfaceNamePrefix'
  /** One or two CIDRs with a comma; empty for none. */
  readonly clusterCIDR?: string
  readonly detectLocal?: { readonly bridgeInterface?: string; readonly interfaceNamePrefix?: string }
  readonly masqueradeAll?: boolean
  readonly masqueradeBit?: number
  /** CIDRs and `primary`. */
  readonly nodePortAddresses?: readonly string[]
  readonly allowedExternalCidrs?: readonly string[]
  readonly allowedLoadBalancerCidrs?: readonly string[]
  /** Of --log-rejects, which kube-proxy does not have. */
  readonly logRejects?: number
  /** Of --service-proxy-name, which kube-proxy does not have. */
  readonly serviceProxyName?: string
}

export const NODE_NAME = 'test-node'
export const CLUSTER_CIDR = '10.0.0.0/8,fd00:10::/64'

export function resolveOptionsOf(config: PipelineConfig): ResolveOptions {
  return {
    nodeName: NODE_NAME,
    serviceProxyName: config.serviceProxyName,
    nodePortSelection: nodePortSelection(config.nodePortAddresses ?? ['primary']),
    allowedExternalCidrs: (config.allowedExternalCidrs ?? []).map(cidr),
    allowedLoadBalancerCidrs: (config.allowedLoadBalancerCidrs ?? []).map(cidr),
    allowServiceExternalIps: true,
    bindAddress: undefined,
    balancing: { policy: 'random' },
  }
}

function nodePortSelection(addresses: readonly string[]): NodePortSelection {
  return {
    primary: addresses.includes('primary'),
    cidrs: addresses.filter(address => address !== 'primary').map(cidr),
  }
}

export function nftablesOptionsOf(config: PipelineConfig): NftablesOptions {
  return {
    ...DEFAULT_NFTABLES_OPTIONS,
    masqueradeAll: config.masqueradeAll ?? false,
    masqueradeBit: config.masqueradeBit ?? 14,
    logGroup: config.logRejects ?? 0,
    detector: { IPv4: detector(config, 'IPv4'), IPv6: detector(config, 'IPv6') },
  }
}

export function ipvsOptionsOf(config: PipelineConfig): IpvsOptions {
  const { masqueradeAll, masqueradeBit, detector } = nftablesOptionsOf(config)
  return { ...DEFAULT_IPVS_OPTIONS, masqueradeAll, masqueradeBit, detector }
}

export function iptablesOptionsOf(config: PipelineConfig): IptablesOptions {
  const { masqueradeAll, masqueradeBit, detector, logGroup } = nftablesOptionsOf(config)
  return { ...DEFAULT_IPTABLES_OPTIONS, masqueradeAll, masqueradeBit, detector, logGroup }
}

function detector(config: PipelineConfig, family: Family): DetectorOption | undefined {
  const { bridgeInterface, interfaceNamePrefix } = config.detectLocal ?? {}
  switch (config.detectLocalMode ?? 'ClusterCIDR') {
    case 'NodeCIDR':
      return { kind: 'node-cidr' }
    case 'BridgeInterface':
      return bridgeInterface === undefined ? undefined : { kind: 'interface', name: bridgeInterface }
    case 'InterfaceNamePrefix':
      return interfaceNamePrefix === undefined
        ? undefined
        : { kind: 'interface-prefix', prefix: interfaceNamePrefix }
    case 'ClusterCIDR': {
      const cidrs = (config.clusterCIDR ?? CLUSTER_CIDR).split(',').filter(text => text !== '')
      const own = cidrs.map(cidr).find(({ ip }) => familyOf(ip) === family)
      return own === undefined ? undefined : { kind: 'cidr', cidr: own }
    }
  }
}

function cidr(text: string) {
  const parsed = parseCidr(text)
  assert(parsed !== undefined, `not a CIDR: ${text}`)
  return parsed
}

export function ip(text: string): Ip {
  const parsed = parseIp(text)
  assert(parsed !== undefined, `not an IP address: ${text}`)
  return parsed
}

/** What differs between modes on the way from objects to what the kernel should hold. */
export interface Mode<State> {
  readonly name: string
  readonly empty: State
  /** What this mode asks of the model. */
  readonly resolving: Partial<ResolveOptions>
  render(table: FrontendTable, base: State, config: PipelineConfig): Steps<State>
}

const NO_SERVICES: ReadonlySet<string> = new Set()

export const NFTABLES: Mode<NftablesState> = {
  name: 'nftables',
  empty: EMPTY_STATE,
  resolving: {},
  render: (table, base, config) =>
    renderState(table, { base, without: NO_SERVICES }, nftablesOptionsOf(config)),
}

function ipvsMode(rules: IpvsOptions['rules']): Mode<IpvsState> {
  return {
    name: 'ipvs',
    empty: EMPTY_IPVS_STATE,
    resolving: { listNodePortAddresses: true },
    render: (table, base, config) =>
      renderIpvsState(
        table,
        { base, without: NO_SERVICES },
        { ...ipvsOptionsOf(config), rules, missingSchedulers: NO_SERVICES },
      ),
  }
}

export const IPVS = ipvsMode('nftables')
/** With --ipvs-rules=iptables. */
export const IPVS_CHAINS = ipvsMode('iptables')

function iptablesMode(more: Partial<IptablesOptions>): Mode<IptablesState> {
  return {
    name: 'iptables',
    empty: EMPTY_IPTABLES_STATE,
    resolving: { loopbackNodePorts: true, balancing: { policy: 'random', refusedBy: 'iptables' } },
    render: (table, base, config) =>
      renderIptablesState(table, { base, without: NO_SERVICES }, { ...iptablesOptionsOf(config), ...more }),
  }
}

export const IPTABLES = iptablesMode({})
/** With --iptables-optimize. */
export const IPTABLES_OPTIMIZED = iptablesMode({ optimize: true })

export interface Stateful {
  readonly refusals: ReadonlyMap<string, readonly Refusal[]>
}

/** Everything that follows from the objects so far. Immutable: each change gives the next one. */
export interface Computed<State extends Stateful = NftablesState> {
  readonly mode: Mode<State>
  readonly config: PipelineConfig
  readonly resolved: Resolved
  readonly state: State
  /** By `kind key`: objects of which nothing can be used. */
  readonly refusedObjects: ReadonlyMap<string, Refusal>
}

export function compute(config: PipelineConfig, localIps: readonly string[]): Computed {
  return computeIn(NFTABLES, config, localIps)
}

export function computeIn<State extends Stateful>(
  mode: Mode<State>,
  config: PipelineConfig,
  localIps: readonly string[],
): Computed<State> {
  const resolved = finish(resolve(resolvingFor(mode, config), undefined, EMPTY_SNAPSHOT))
  const start = { mode, config, resolved, state: mode.empty, refusedObjects: new Map() }
  return advance(start, [{ kind: 'LocalIps', value: localIps.map(ip) }])
}

function resolvingFor(mode: Pick<Mode<unknown>, 'resolving'>, config: PipelineConfig): ResolveOptions {
  return { ...resolveOptionsOf(config), ...mode.resolving }
}

export interface ObjectChanges {
  readonly objects: readonly unknown[]
  /** `Service ns1/web`, `Node test-node`. */
  readonly remove?: readonly string[]
}

/** Objects as a source hands them over: a refused one takes its earlier version with it. */
export function change<State extends Stateful>(
  before: Computed<State>,
  changes: ObjectChanges,
): Computed<State> {
  const events: SourceEvent[] = []
  const refusedObjects = new Map(before.refusedObjects)
  const parsing = { headlessSlices: before.config.serviceProxyName !== undefined }
  for (const name of changes.remove ?? []) {
    refusedObjects.delete(name)
    events.push(deletion(name))
  }
  for (const object of changes.objects) {
    const parsed = parseObject(object, undefined, parsing)
    const identity = watchedIdentity(object)
    const name = `${identity?.kind} ${identity?.key}`
    refusedObjects.delete(name)
    if (parsed === undefined) continue
    if (!isRefusal(parsed)) events.push(parsed)
    else {
      refusedObjects.set(name, parsed)
      if (identity !== undefined) events.push(deletion(name))
    }
  }
  return { ...advance(before, events), refusedObjects }
}

function deletion(name: string): SourceEvent {
  const [kind, key = ''] = name.split(' ')
  switch (kind) {
    case 'Service':
    case 'EndpointSlice':
    case 'ServiceCIDR':
    case 'Node':
      return { kind, key, value: undefined }
    default:
      throw new Error(`cannot remove ${name}`)
  }
}

export function advance<State extends Stateful>(
  before: Computed<State>,
  events: readonly SnapshotEvent[],
): Computed<State> {
  const { mode, config } = before
  const snapshot = applyEvents(before.resolved.snapshot, events)
  const resolved = finish(resolve(resolvingFor(mode, config), before.resolved, snapshot))
  const state = finish(mode.render(resolved.table, before.state, config))
  return { ...before, resolved, state }
}

/** All refusals there are, as `object field value` without the indexes of lists, sorted. */
export function refusalsOf({ resolved, refusedObjects, state }: Computed<Stateful>): readonly string[] {
  const all = [
    ...refusedObjects.values(),
    ...(resolved.snapshot.node?.refusals ?? []),
    ...[...resolved.table.services.values()].flatMap(({ refusals }) => refusals),
    ...[...state.refusals.values()].flat(),
  ]
  return all.map(({ object, field, value }) => `${object} ${field.replace(/\[\d+\]/g, '')} ${value}`).sort()
}

export type NftablesPlane = Dataplane<NftablesState, NftablesPlan>

export interface KernelPlane {
  readonly client: NftClient
  readonly plane: NftablesPlane
}

/** A plane on the real kernel, in the network namespace this process is in now. */
export function openPlane(config: PipelineConfig): KernelPlane {
  const client = openClient()
  return { client, plane: planeOn(client, config) }
}

export function openClient(): NftClient {
  return createNftClient({ transport: openNetlink({ protocol: NETLINK_NETFILTER }), clock: systemClock })
}

export function planeOn(client: NftClient, config: PipelineConfig): NftablesPlane {
  return createNftablesPlane({ client, options: nftablesOptionsOf(config) })
}

const COMMITS_MAX = 4

/** Commits until nothing has to wait for a later commit. Gives what the kernel should then hold. */
export async function commitAll<State, P extends Plan<State>>(
  plane: Dataplane<State, P>,
  from: State,
  to: State,
): Promise<State> {
  let held = from
  for (let count = 0; count < COMMITS_MAX; count++) {
    const plan = finish(plane.diff(held, to))
    if (plan.empty && plan.complete) return plan.after
    const receipt = await plane.commit(plan, {})
    assert(
      receipt.outcome === 'committed',
      `${receipt.outcome}: ${receipt.refusals.map(({ error }) => error.message)}`,
    )
    held = plan.after
    if (plan.complete) return held
  }
  throw new Error(`not complete after ${COMMITS_MAX} commits`)
}
