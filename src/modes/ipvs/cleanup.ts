import { type Clock, pause } from '../../base/clock.ts'
import { PersistentMap } from '../../base/collections.ts'
import { anyContains, formatIp, type Ip } from '../../base/ip.ts'
import { count } from '../../base/text.ts'
import {
  type IpvsOperation,
  serverKey,
  type VirtualAddress,
  type VirtualServer,
} from '../../kernel/ipvs/state.ts'
import { NF_INET_LOCAL_OUT, NF_INET_PRE_ROUTING, NF_IP_PRI_NAT_DST } from '../../kernel/nft/constants.ts'
import { diffRulesets } from '../../kernel/nft/diff.ts'
import type { NftFamily, Observed, Ruleset, Table } from '../../kernel/nft/state.ts'
import type { Transaction } from '../../kernel/nft/transaction.ts'
import { placeOfTable } from '../../kernel/xt/scope.ts'
import type { ApiEndpoint } from '../../model/reserved.ts'
import { DUMMY_DEVICE } from '../common/kube-proxy.ts'
import {
  CHAIN_LATE_OUTPUT,
  CHAIN_LATE_PREROUTING,
  CHAIN_REJECT,
  goTo,
  natChain,
  rejectChain,
  rule,
} from '../common/rules.ts'
import { LAYOUTS } from '../common/tables.ts'
import { commitError, deleteTable } from '../common/writers.ts'
import type { Cleaned, CleanupContext, Freed, ModeContext, Retired } from '../mode.ts'
import { isIpvsChain } from '../xt-common/layout.ts'
import { NO_LATE_SETS } from './diff.ts'
import { setName } from './layout.ts'
import {
  clusterIpsIn,
  hasIpvsTable,
  type IpvsKernel,
  type ObserveKernelOptions,
  observeKernel,
  readIpvsState,
  withIpvsKernel,
} from './observe.ts'
import { IpvsPlane } from './plane.ts'
import { DEFAULT_IPVS_OPTIONS, type IpvsOptions, ipvsOptions } from './settings.ts'
import type { IpvsState, PlacedServer } from './state.ts'

export async function cleanIpvs(context: CleanupContext): Promise<Cleaned> {
  return { removed: removedTexts(await removeIpvs('kprobe', context)), foreign: [] }
}

/** Removes the same objects of kube-proxy's IPVS mode. */
export async function cleanKubeProxyIpvs(context: CleanupContext): Promise<readonly string[]> {
  return removedTexts(await removeIpvs('kube-proxy', context))
}

/** The program whose objects are removed. Both use the same ipsets; our own table shows that they are ours. */
type IpvsOwner = 'kprobe' | 'kube-proxy'

/**
 * Removes at once the virtual servers, addresses and ipsets of an IPVS mode, and our table. Only objects that
 * the ipsets record are removed. Gives the removed state; undefined when there was none, or when it belongs
 * to the other owner. Throws when the kernel rejects a change.
 */
async function removeIpvs(owner: IpvsOwner, context: CleanupContext): Promise<IpvsState | undefined> {
  const { clock, proxy } = context
  // A named proxy cannot use this mode.
  if (proxy !== undefined) return undefined
  const isOurs = await hasIpvsTable(context)
  if (isOurs !== (owner === 'kprobe')) return undefined
  return await withIpvsKernel(context, async kernel => {
    const plane = new IpvsPlane({ ...kernel, clock, options: DEFAULT_IPVS_OPTIONS })
    try {
      const state = await readIpvsState(kernel)
      if (state.sets.size === 0 && state.ruleset.tables.length === 0) return undefined
      await plane.cleanup()
      return state
    } finally {
      await plane.close()
    }
  })
}

/** Lists the removed objects, one item a line. Pure. */
function removedTexts(state: IpvsState | undefined): readonly string[] {
  if (state === undefined) return []
  const { servers, sets, addresses, ruleset, chains } = state
  return [
    ...(servers.size === 0 ? [] : [count(servers.size, 'IPVS virtual server')]),
    ...(addresses.size === 0
      ? []
      : [`addresses of the device ${DUMMY_DEVICE} (${addresses.size}), and the device if it has no other`]),
    ...ruleset.tables.map(({ family, name }) => `table ${family} ${name}`),
    ...(chains.kind === 'observed' ? chainTexts(chains.observed) : []),
    ...(sets.size === 0 ? [] : [count(sets.size, 'ipset')]),
  ]
}

function chainTexts(observed: Observed): readonly string[] {
  return [...observed].flatMap(([key, { chains }]) => {
    const table = placeOfTable(key)?.table
    const ours = [...chains.keys()].filter(name => table !== undefined && isIpvsChain(table, name))
    return ours.length === 0
      ? []
      : [`${count(ours.length, 'chain')}, and the rules that led to them, in table ${key}`]
  })
}

/**
 * Lets the connections of IPVS end, for as long as the configuration allows, and then removes everything.
 * Does nothing without our own table, which distinguishes this program's objects from those of kube-proxy's
 * IPVS mode.
 */
export async function retireIpvs(context: ModeContext, signal: AbortSignal): Promise<Retired> {
  const { clock } = context
  const options = ipvsOptions(context.config)
  if (signal.aborted || !(await hasIpvsTable(context))) return 'nothing'
  await withIpvsKernel(context, async kernel => {
    const plane = new IpvsPlane({ ...kernel, clock, options })
    try {
      await retireIpvsPlane({ kernel, plane, clock, options, signal })
    } finally {
      await plane.close()
    }
  })
  return 'removed'
}

interface RetireOptions {
  readonly kernel: IpvsKernel
  readonly plane: IpvsPlane
  readonly clock: Clock
  readonly options: IpvsOptions
  /** Ends the wait. The present objects stay for the next process. */
  readonly signal: AbortSignal
}

/**
 * Leaves the kernel to another mode, which already has nat chains. New connections no longer
 * go to our endpoints. Connections may end until drainMs is over, and then all objects are removed
 * (docs/decisions/0015). Throws the kernel's error when an object cannot be changed.
 */
export async function retireIpvsPlane({
  kernel,
  plane,
  clock,
  options,
  signal,
}: RetireOptions): Promise<void> {
  const { state } = await plane.observe()
  // The cleanup also keeps those in excluded prefixes.
  const placed = state.servers.values().filter(({ server }) => !anyContains(options.excludeCidrs, server.ip))
  await drainAll(kernel, placed)
  await shrink(kernel, state.ruleset, options)
  const servers = placed.map(({ server }) => server)
  const endMs = clock.nowMs() + options.drainMs
  while (!signal.aborted && clock.nowMs() < endMs && (await hasConnections(kernel, servers)))
    // A look a second: each lists all real servers.
    await pause(clock, Math.min(1_000, endMs - clock.nowMs()), signal)
  if (!signal.aborted) await plane.cleanup()
}

/** Sets the weight of all real servers to 0. Real servers deleted since the read are ignored. */
async function drainAll({ ipvs }: IpvsKernel, servers: readonly PlacedServer[]): Promise<void> {
  const operations = servers.flatMap(({ server, destinations }) =>
    [...destinations.values()]
      .filter(({ weight }) => weight > 0)
      .map((destination): IpvsOperation => {
        const drained = { ...destination, weight: 0 }
        return { verb: 'set-destination', server, destination: drained, isNew: false, group: '' }
      }),
  )
  const { unknown, failures } = await ipvs.commit(operations)
  const failure = unknown ?? failures.find(({ code }) => code !== 'ENOENT' && code !== 'ESRCH')?.error
  if (failure !== undefined) throw failure
}

/** Replaces the whole table by the guard, in one transaction. */
async function shrink({ nft }: IpvsKernel, { tables }: Ruleset, { tableName }: IpvsOptions): Promise<void> {
  const transaction = tables.flatMap(({ family }) => guardOf(family, tableName))
  if (transaction.length === 0) return
  const result = await nft.commit(transaction, {})
  if (result.outcome !== 'committed') throw commitError(`replace the rules of table ${tableName}`, result)
}

/** A priority behind the chains of the other mode, so that packets which these translated do not match. */
const PRIORITY = NF_IP_PRI_NAT_DST + 1

/** Makes the guard. Without it, an untranslated packet to a bound address would reach the node's own ports. */
function guardOf(family: NftFamily, name: string): Transaction {
  const layout = LAYOUTS[family]
  const bound = setName('IPVS-IPS', layout.model)
  const rules = [
    rule([{ kind: 'ipset', set: bound, dimensions: ['dst'], inverted: false }, goTo(CHAIN_REJECT)]),
  ]
  const chains = [
    rejectChain(layout),
    natChain(CHAIN_LATE_PREROUTING, NF_INET_PRE_ROUTING, PRIORITY, rules),
    natChain(CHAIN_LATE_OUTPUT, NF_INET_LOCAL_OUT, PRIORITY, rules),
  ]
  const guard: Table = {
    family,
    name,
    flags: 0,
    comment: undefined,
    chains: new Map(chains.map(chain => [chain.name, chain])),
    sets: new Map(),
    elements: PersistentMap.empty(),
  }
  const { transaction } = diffRulesets({ tables: [] }, { tables: [guard] }, NO_LATE_SETS)
  return [deleteTable(guard), ...transaction]
}

async function hasConnections({ ipvs }: IpvsKernel, servers: readonly VirtualAddress[]): Promise<boolean> {
  const lists = await ipvs.destinations(servers)
  return lists.flat().some(each => each.activeConnections + each.inactiveConnections > 0)
}

/**
 * Removes the addresses of endpoints from the dummy device, and virtual servers at these endpoints, as far as
 * IPVS mode recorded them as its own. With these objects in place, packets of this node to the addresses do
 * not leave the node. A ClusterIP stays, because only IPVS leads to it. Sets and rules stay as the record for
 * the next pass. The promise rejects when the kernel rejects a change.
 */
export async function freeEndpoints(
  kernel: IpvsKernel,
  endpoints: readonly ApiEndpoint[],
  options: ObserveKernelOptions,
): Promise<{ readonly addresses: readonly Ip[]; readonly servers: readonly VirtualServer[] }> {
  const { dummy, ipvs } = kernel
  // Without the device IPVS mode is not in use here. This check loads no kernel module.
  if ((await dummy.addresses(DUMMY_DEVICE)) === undefined) return { addresses: [], servers: [] }
  const { state } = await observeKernel(kernel, options)
  const clusterIps = clusterIpsIn(state)
  const others = endpoints.filter(({ ip }) => !clusterIps.has(ip))
  const addresses = [...new Set(others.map(({ ip }) => ip))].filter(ip => state.addresses.has(ip))
  const servers = others.flatMap(({ ip, port }) => {
    const placed = state.servers.get(serverKey({ protocol: 'TCP', ip, port }))
    return placed === undefined || anyContains(options.excludeCidrs, ip) ? [] : [placed.server]
  })
  const unbound = await dummy.commit(DUMMY_DEVICE, { add: [], remove: addresses })
  const deleted = await ipvs.commit(
    servers.map(server => ({ verb: 'delete-server', group: '', server }) as const),
  )
  for (const { failures, unknown } of [unbound, deleted]) {
    const error = failures[0]?.error ?? unknown
    if (error !== undefined) throw error
  }
  return { addresses, servers }
}

const FREED = `cannot connect to the API server: IPVS mode serves a Service at its address; removed the address from ${DUMMY_DEVICE}, and its virtual servers; the first sync restores those that Services still need`

/** Removes the objects of IPVS mode at these endpoints: see freeEndpoints. */
export async function freeFromIpvs(
  context: ModeContext,
  endpoints: readonly ApiEndpoint[],
): Promise<Freed | undefined> {
  const options = ipvsOptions(context.config)
  const { addresses, servers } = await withIpvsKernel(context, kernel =>
    freeEndpoints(kernel, endpoints, options),
  )
  if (addresses.length + servers.length === 0) return undefined
  return {
    facts: { addresses: addresses.map(formatIp), virtualServers: servers.map(serverKey) },
    text: FREED,
  }
}
