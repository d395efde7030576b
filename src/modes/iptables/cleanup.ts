import { count } from '../../base/text.ts'
import type { Config } from '../../config/config.ts'
import type { CommitResult, NftClient } from '../../kernel/nft/client.ts'
import type { Observed } from '../../kernel/nft/state.ts'
import type { Operation } from '../../kernel/nft/transaction.ts'
import { readSysctl, type SysctlWrite, writeSysctl } from '../../kernel/sysctl/sysctls.ts'
import { NFT_FAMILIES } from '../common/tables.ts'
import { commitError, withNftClient } from '../common/writers.ts'
import {
  type Cleaned,
  type CleanupContext,
  type CleanupRest,
  type KernelAccess,
  type ModeContext,
  openAll,
  type Retired,
} from '../mode.ts'
import {
  type ChainNames,
  chainNames,
  isOurChain,
  KUBE_LOAD_BALANCER,
  KUBE_PROXY_CANARY,
  namedPrefixOf,
} from '../xt-common/layout.ts'
import { XT_TABLES } from '../xt-common/read-chains.ts'
import { SIGNATURE } from './chains.ts'
import { NO_NFACCT_COUNTERS, openNfacctCounters } from './metrics.ts'
import { IptablesPlane } from './plane.ts'
import { DEFAULT_IPTABLES_OPTIONS, ROUTE_LOCALNET } from './settings.ts'

/**
 * Removes the chains of an iptables mode and the rules that lead to them, then the counters of nfacct. The tables
 * stay, with all objects of other programs. Throws when the kernel rejects a change.
 */
export async function cleanIptables(context: CleanupContext): Promise<Cleaned> {
  const { sockets, clock, proxy } = context
  const isNamed = proxy !== undefined
  const counters = isNamed
    ? NO_NFACCT_COUNTERS
    : openAll(sockets, open => openNfacctCounters(open, clock, true))
  try {
    const removed = await withNftClient(context, client => removeChains(client, chainNames(proxy)))
    counters.remove()
    return { removed, foreign: [] }
  } finally {
    await counters.close()
  }
}

async function removeChains(client: NftClient, names: ChainNames): Promise<readonly string[]> {
  const plane = planeOf(client, names)
  const { state } = await plane.observe()
  await plane.cleanup()
  return state.kind === 'observed' ? chainsByTable(state.observed, names) : []
}

function planeOf(client: NftClient, names: ChainNames): IptablesPlane {
  return new IptablesPlane({ client, options: { ...DEFAULT_IPTABLES_OPTIONS, names } })
}

function chainsByTable(observed: Observed, names: ChainNames): readonly string[] {
  return NFT_FAMILIES.flatMap(family =>
    XT_TABLES.flatMap(table => {
      const chains = [...(observed.get(`${family} ${table}`)?.chains.values() ?? [])]
      const ours = chains.filter(({ name }) => isOurChain(names, table, name))
      if (ours.length === 0) return []
      const rules = ours.reduce((sum, chain) => sum + chain.rules.length, 0)
      return `${count(ours.length, 'chain')} with ${count(rules, 'rule')}, and the rules that led to them, in table ${family} ${table}`
    }),
  )
}

/**
 * Removes our chains and the rules that lead to them. The tables stay, because their hooks keep every flow. Chains of
 * the unnamed proxy have kube-proxy's names: they stay unless kprobe wrote them, and kube-proxy has not since.
 */
export async function retireIptables(
  context: ModeContext,
  signal: AbortSignal,
  isKnown: boolean,
): Promise<Retired> {
  const names = chainNames(context.config.serviceProxyName)
  return await withNftClient(context, async client => {
    if (!(await hasChains(client, names))) return 'nothing'
    const whyNot = async () => (isKnown || names.proxy !== undefined ? undefined : await whyKept(client))
    const kept = await whyNot()
    if (kept !== undefined) return { kept }
    if (signal.aborted) return { kept: 'chains of iptables mode' }
    await planeOf(client, names).cleanup(async () => (await whyNot()) === undefined)
    const since = await whyNot()
    return since === undefined ? 'removed' : { kept: since }
  })
}

/** Gives why the chains of the unnamed proxy may be another program's; undefined where kprobe was the last to write them. */
async function whyKept(client: NftClient): Promise<string | undefined> {
  const record = await read(client)
  const unsigned = await unsignedRules(client)
  if (record !== undefined && unsigned.every(rule => record.found.includes(rule))) return undefined
  const why =
    record === undefined
      ? "they may be kube-proxy's, which have the same names"
      : 'another program has written them since kprobe ran in this mode'
  return `chains of iptables mode, which kprobe keeps because ${why}. They keep serving but no longer follow changes. Stop kube-proxy, then remove them with \`kprobe cleanup --leftovers-of=kube-proxy\``
}

/** Returns whether kprobe has recorded that it ran in this mode, and no other program has written the chains since. */
export async function isIptablesRecorded(kernel: KernelAccess): Promise<boolean> {
  return await withNftClient(kernel, async client => (await whyKept(client)) === undefined)
}

/** Gives family and handle of first rules of KUBE-POSTROUTING without our signature: kube-proxy's, new in each sync. */
async function unsignedRules(client: NftClient): Promise<readonly string[]> {
  const { postrouting } = chainNames(undefined)
  const chains = (name: string): boolean => name === postrouting
  const places = NFT_FAMILIES.map(family => ({ family, table: 'nat' as const, chains }))
  const { observed } = await client.listChains(places)
  return NFT_FAMILIES.flatMap(family => {
    const first = observed.get(`${family} nat`)?.chains.get(postrouting)?.rules[0]
    return first === undefined || first.userdata === SIGNATURE ? [] : [`${family} ${first.handle}`]
  })
}

/**
 * Returns whether the kernel holds chains of this mode with these names. KUBE-SERVICES belongs to IPVS mode if chains
 * that only IPVS mode has are beside it, and the canary of iptables mode is absent.
 */
async function hasChains(client: NftClient, { proxy, services }: ChainNames): Promise<boolean> {
  const beside = proxy === undefined ? [KUBE_PROXY_CANARY, KUBE_LOAD_BALANCER] : []
  const chains = (name: string): boolean => name === services || beside.includes(name)
  const places = NFT_FAMILIES.map(family => ({ family, table: 'nat' as const, chains }))
  const { observed } = await client.listChains(places)
  return [...observed.values()].some(({ chains: found }) => {
    const isOfIpvs = found.has(KUBE_LOAD_BALANCER) && !found.has(KUBE_PROXY_CANARY)
    return found.has(services) && !isOfIpvs
  })
}

/**
 * An empty table whose comment records that kprobe's iptables mode wrote here. The mode's chains have kube-proxy's
 * names, so they do not show which program wrote them.
 */
const RECORD = { family: 'ip', table: 'kprobe-record' } as const

interface IptablesRecord {
  /** The value of route_localnet before kprobe changed it; undefined where kprobe did not. */
  readonly routeLocalnet: number | undefined
  /** The unsigned rules at kprobe's last start. */
  readonly found: readonly string[]
  readonly comment: string
}

/**
 * Writes the record. A later start keeps the former value, and takes over the chains that it finds. The chains of a named
 * proxy have unique names and need no record. Throws when the kernel rejects a change.
 */
export async function writeIptablesRecord(
  { serviceProxyName }: Pick<Config, 'serviceProxyName'>,
  written: readonly SysctlWrite[],
  kernel: KernelAccess,
): Promise<void> {
  if (serviceProxyName !== undefined) return
  const before = written.find(({ name }) => name === ROUTE_LOCALNET.sysctl.name)?.before
  await withNftClient(kernel, async client => {
    const held = await read(client)
    const comment = commentOf(held?.routeLocalnet ?? before, await unsignedRules(client))
    if (held?.comment === comment) return
    const add: Operation = { ...RECORD, verb: 'add-table', flags: 0, comment }
    throwUnlessCommitted(await client.commit(held === undefined ? [add] : [DELETE, add]))
  })
}

async function removeIptablesRecord(kernel: KernelAccess): Promise<void> {
  await withNftClient(kernel, async client => throwUnlessCommitted(await client.commit([DELETE])))
}

const DELETE: Operation = { ...RECORD, verb: 'delete-table' }

async function read(client: NftClient): Promise<IptablesRecord | undefined> {
  const { family, table: name } = RECORD
  const [table] = (await client.list([{ family, name }])).ruleset.tables
  if (table === undefined) return undefined
  const { comment = '' } = table
  const value = FORMER_VALUE.exec(comment)?.[1]
  const routeLocalnet = value === undefined ? undefined : Number(value)
  return { routeLocalnet, found: comment.match(FOUND) ?? [], comment }
}

const FORMER_VALUE = /; route_localnet was (\d+)$/
const FOUND = /\bip6? \d+/g

function commentOf(routeLocalnet: number | undefined, found: readonly string[]): string {
  const former = routeLocalnet === undefined ? '' : `; route_localnet was ${routeLocalnet}`
  return ['iptables mode of kprobe', ...found.map(each => `; found ${each}`), former].join('')
}

function throwUnlessCommitted(result: CommitResult): void {
  if (result.outcome !== 'committed')
    throw commitError(`write table ${RECORD.family} ${RECORD.table}`, result)
}

const NAME = `${RECORD.family} ${RECORD.table}`

/**
 * Undoes what the record names and removes the record, once no chains of iptables mode are left. Gives a line for
 * each thing that it did or left. Throws when the kernel rejects a change: the record stays then.
 */
export async function settleIptablesRecord(
  kernel: KernelAccess,
  { kubeProxyRuns, hasChains, hasLegacyChains }: CleanupRest,
): Promise<readonly string[]> {
  const record = hasChains ? undefined : await withNftClient(kernel, read)
  if (record === undefined) return []
  const former = record.routeLocalnet
  if (former !== undefined && (kubeProxyRuns || hasLegacyChains || (await hasNamedChains(kernel))))
    return [`left table ${NAME} and route_localnet=${ROUTE_LOCALNET.value}: another proxy may need it`]
  const restored = former === undefined ? [] : await restore(former)
  await removeIptablesRecord(kernel)
  return [...restored, `removed table ${NAME}`]
}

/** Restores the former value, unless another program has changed the value since. */
async function restore(former: number): Promise<readonly string[]> {
  const { sysctl, value } = ROUTE_LOCALNET
  const path = `/${sysctl.path}`
  if (former === value || (await readSysctl(path)) !== value) return []
  const error = await writeSysctl(path, former)
  if (error !== undefined) throw new Error(`cannot set sysctl ${sysctl.name} to ${former}: ${error.message}`)
  return [`changed sysctl ${sysctl.name} from ${value} back to ${former}`]
}

/** Returns whether a named proxy runs in iptables mode; it serves node ports at 127.0.0.1 as well. */
async function hasNamedChains(kernel: KernelAccess): Promise<boolean> {
  const chains = (name: string): boolean => namedPrefixOf(name) !== undefined
  const { observed } = await withNftClient(kernel, client =>
    client.listChains([{ family: 'ip', table: 'nat', chains }]),
  )
  return [...observed.values()].some(table => [...table.chains.keys()].some(chains))
}
