import type { Config } from '../../config/config.ts'
import type { CommitResult, NftClient } from '../../kernel/nft/client.ts'
import type { Operation } from '../../kernel/nft/operation.ts'
import { readSysctl, type SysctlWrite, writeSysctl } from '../../kernel/sysctl/files.ts'
import type { CleanupRest, RecordKernel } from '../mode.ts'
import { namedPrefixOf } from '../xt-common/layout.ts'
import { withClient } from './cleanup.ts'
import { ROUTE_LOCALNET } from './settings.ts'

/**
 * An empty table whose comment records that kprobe's iptables mode wrote here. The mode's chains have kube-proxy's
 * names, so they do not show which program wrote them.
 */
const RECORD = { family: 'ip', table: 'kprobe-record' } as const

interface IptablesRecord {
  /** The value of route_localnet before kprobe changed it; undefined where kprobe did not. */
  readonly routeLocalnet: number | undefined
}

export async function readIptablesRecord(kernel: RecordKernel): Promise<IptablesRecord | undefined> {
  return await withClient(kernel, read)
}

/**
 * Writes the record once; a later start changes it only to add a former value. The chains of a named proxy have
 * unique names and need no record. Throws when the kernel rejects a change.
 */
export async function writeIptablesRecord(
  { serviceProxyName }: Pick<Config, 'serviceProxyName'>,
  written: readonly SysctlWrite[],
  kernel: RecordKernel,
): Promise<void> {
  if (serviceProxyName !== undefined) return
  const before = written.find(({ name }) => name === ROUTE_LOCALNET.sysctl.name)?.before
  await withClient(kernel, async client => {
    const held = await read(client)
    if (held !== undefined && (before === undefined || held.routeLocalnet !== undefined)) return
    const add: Operation = { ...RECORD, verb: 'add-table', flags: 0, comment: commentOf(before) }
    throwUnlessCommitted(await client.commit(held === undefined ? [add] : [DELETE, add]))
  })
}

async function removeIptablesRecord(kernel: RecordKernel): Promise<void> {
  await withClient(kernel, async client => throwUnlessCommitted(await client.commit([DELETE])))
}

const DELETE: Operation = { ...RECORD, verb: 'delete-table' }

async function read(client: NftClient): Promise<IptablesRecord | undefined> {
  const { family, table: name } = RECORD
  const [table] = (await client.list([{ family, name }])).ruleset.tables
  if (table === undefined) return undefined
  const value = FORMER_VALUE.exec(table.comment ?? '')?.[1]
  return { routeLocalnet: value === undefined ? undefined : Number(value) }
}

const FORMER_VALUE = /; route_localnet was (\d+)$/

function commentOf(routeLocalnet: number | undefined): string {
  const former = routeLocalnet === undefined ? '' : `; route_localnet was ${routeLocalnet}`
  return `iptables mode of kprobe${former}`
}

function throwUnlessCommitted({ outcome, failures: [failure] }: CommitResult): void {
  if (outcome !== 'committed')
    throw new Error(`table ${RECORD.family} ${RECORD.table}: ${failure?.error.message ?? outcome}`)
}

const NAME = `${RECORD.family} ${RECORD.table}`

/**
 * Undoes what the record names and removes the record, once no chains of iptables mode are left. Gives a line for
 * each thing that it did or left. Throws when the kernel rejects a change: the record stays then.
 */
export async function settleIptablesRecord(
  kernel: RecordKernel,
  { kubeProxyRuns, hasChains, hasLegacyChains }: CleanupRest,
): Promise<readonly string[]> {
  const record = hasChains ? undefined : await readIptablesRecord(kernel)
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
async function hasNamedChains(kernel: RecordKernel): Promise<boolean> {
  const chains = (name: string): boolean => namedPrefixOf(name) !== undefined
  const { observed } = await withClient(kernel, client =>
    client.listChains([{ family: 'ip', table: 'nat', chains }]),
  )
  return [...observed.values()].some(table => [...table.chains.keys()].some(chains))
}
