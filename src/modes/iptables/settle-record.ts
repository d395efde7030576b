import { createNftClient } from '../../kernel/nft/client.ts'
import { readSysctl, writeSysctl } from '../../kernel/sysctl/files.ts'
import type { CleanupRest, RecordKernel } from '../mode.ts'
import { namedPrefixOf } from '../xt-common/layout.ts'
import { RECORD, readIptablesRecord, removeIptablesRecord } from './record.ts'
import { ROUTE_LOCALNET } from './tune.ts'

const NAME = `${RECORD.family} ${RECORD.table}`

/**
 * Undoes what the record names and removes the record, once no chains of iptables mode are left. Gives a line for each
 * thing that it did or left. Throws when the kernel refuses: the record stays then.
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

/** A value that somebody else has set since stays. */
async function restore(former: number): Promise<readonly string[]> {
  const { sysctl, value } = ROUTE_LOCALNET
  const path = `/${sysctl.path}`
  if (former === value || (await readSysctl(path)) !== value) return []
  const error = await writeSysctl(path, former)
  if (error !== undefined) throw new Error(`cannot set sysctl ${sysctl.name} to ${former}: ${error.message}`)
  return [`changed sysctl ${sysctl.name} from ${value} back to ${former}`]
}

/** A named proxy in iptables mode answers at 127.0.0.1 as well. */
async function hasNamedChains({ sockets, clock }: RecordKernel): Promise<boolean> {
  const client = createNftClient({ transport: sockets.netfilter(), clock })
  try {
    const chains = (name: string): boolean => namedPrefixOf(name) !== undefined
    const { observed } = await client.listChains([{ family: 'ip', table: 'nat', chains }])
    return [...observed.values()].some(table => [...table.chains.keys()].some(chains))
  } finally {
    await client.close()
  }
}
