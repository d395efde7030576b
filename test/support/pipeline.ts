import { assert } from '../../src/base/assert.ts'
import { parseCidr } from '../../src/base/cidr.ts'
import { systemClock } from '../../src/base/clock.ts'
import { type Family, familyOf, type Ip, parseIp } from '../../src/base/ip.ts'
import { finish } from '../../src/base/steps.ts'
import type { DetectorOption } from '../../src/dataplane/common/detector.ts'
import { DEFAULT_NFTABLES_OPTIONS, type NftablesOptions } from '../../src/dataplane/nftables/options.ts'
import type { NftablesPlan } from '../../src/dataplane/nftables/plan.ts'
import { createNftablesPlane } from '../../src/dataplane/nftables/plane.ts'
import { renderState } from '../../src/dataplane/nftables/render.ts'
import { EMPTY_STATE, type NftablesState } from '../../src/dataplane/nftables/state.ts'
import { createNftClient, type NftClient } from '../../src/kernel/nft/client.ts'
import type { FrontendTable } from '../../src/model/frontend.ts'
import type { NodePortSelection, ResolveOptions } from '../../src/model/here.ts'
import { parseObject, watchedIdentity } from '../../src/model/parse.ts'
import { isRefusal, type Refusal } from '../../src/model/refusal.ts'
import { type Resolved, resolve } from '../../src/model/resolve.ts'
import { applyEvents, EMPTY_SNAPSHOT, type SourceEvent } from '../../src/model/snapshot.ts'
import { NETLINK_NETFILTER } from '../../src/netlink/constants.ts'
import { openNetlink } from '../../src/netlink/native.ts'
import type { Dataplane } from '../../src/reconcile/dataplane.ts'

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
}

export const NODE_NAME = 'test-node'
export const CLUSTER_CIDR = '10.0.0.0/8,fd00:10::/64'

export function resolveOptionsOf(config: PipelineConfig): ResolveOptions {
  return {
    nodeName: NODE_NAME,
    serviceProxyName: undefined,
    nodePortSelection: nodePortSelection(config.nodePortAddresses ?? ['primary']),
    allowedExternalCidrs: (config.allowedExternalCidrs ?? []).map(cidr),
    allowedLoadBalancerCidrs: (config.allowedLoadBalancerCidrs ?? []).map(cidr),
    allowServiceExternalIps: true,
    bindAddress: undefined,
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
    detector: { IPv4: detector(config, 'IPv4'), IPv6: detector(config, 'IPv6') },
  }
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

/** Everything that follows from the objects so far. Immutable: each change gives the next one. */
export interface Computed {
  readonly config: PipelineConfig
  readonly resolved: Resolved
  readonly state: NftablesState
  /** By `kind key`: objects of which nothing can be used. */
  readonly refusedObjects: ReadonlyMap<string, Refusal>
}

export function compute(config: PipelineConfig, localIps: readonly string[]): Computed {
  const resolved: Resolved = { snapshot: EMPTY_SNAPSHOT, table: emptyTable(config) }
  const start = { config, resolved, state: EMPTY_STATE, refusedObjects: new Map() }
  return advance(start, [{ kind: 'LocalIps', value: localIps.map(ip) }])
}

function emptyTable(config: PipelineConfig): FrontendTable {
  return finish(resolve(resolveOptionsOf(config), undefined, EMPTY_SNAPSHOT))
}

export interface ObjectChanges {
  readonly objects: readonly unknown[]
  /** `Service ns1/web`, `Node test-node`. */
  readonly remove?: readonly string[]
}

/** Objects as a source hands them over: a refused one takes its earlier version with it. */
export function change(before: Computed, changes: ObjectChanges): Computed {
  const events: SourceEvent[] = []
  const refusedObjects = new Map(before.refusedObjects)
  for (const name of changes.remove ?? []) {
    refusedObjects.delete(name)
    events.push(deletion(name))
  }
  for (const object of changes.objects) {
    const parsed = parseObject(object)
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

function advance(before: Computed, events: readonly SourceEvent[]): Computed {
  const { config } = before
  const snapshot = applyEvents(before.resolved.snapshot, events)
  const table = finish(resolve(resolveOptionsOf(config), before.resolved, snapshot))
  const options = { base: before.state, without: new Set<string>() }
  const state = finish(renderState(table, options, nftablesOptionsOf(config)))
  return { ...before, resolved: { snapshot, table }, state }
}

/** All refusals there are, as `object field value` without the indexes of lists, sorted. */
export function refusalsOf({ resolved, refusedObjects, state }: Computed): readonly string[] {
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
export async function commitAll(
  plane: NftablesPlane,
  from: NftablesState,
  to: NftablesState,
): Promise<NftablesState> {
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
