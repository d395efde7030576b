import { systemClock } from '../base/clock.ts'
import {
  type IptablesRecord,
  RECORD,
  readIptablesRecord,
  removeIptablesRecord,
} from '../daemon/iptables-record.ts'
import { KERNEL } from '../daemon/open.ts'
import { ROUTE_LOCALNET } from '../daemon/tune.ts'
import { createNftClient } from '../kernel/nft/client.ts'
import { readSysctl, writeSysctl } from '../kernel/sysctl/files.ts'
import { namedPrefixOf } from '../modes/iptables/layout.ts'
import type { Leftovers } from './leftovers.ts'
import { kubeProxyChains } from './legacy-iptables.ts'
import { processesNamed } from './processes.ts'

/** What the record of iptables mode means now. */
export interface Recorded {
  /** Undefined when there is none. */
  readonly record: IptablesRecord | undefined
  /** A kube-proxy that runs may have taken over the chains, and needs the settings of its iptables mode. */
  readonly kubeProxyRuns: boolean
}

export async function lookForRecord(): Promise<Recorded> {
  const record = await readIptablesRecord(THIS_KERNEL)
  return { record, kubeProxyRuns: record !== undefined && (await processesNamed('kube-proxy')).length > 0 }
}

const THIS_KERNEL = { clock: systemClock, sockets: KERNEL } as const
const NAME = `${RECORD.family} ${RECORD.table}`

/**
 * Undoes what the record names and removes the record, once no chains of iptables mode are left. Gives a line for each
 * thing that it did or left. Throws when the kernel refuses: the record stays then.
 */
export async function settleRecord(
  { record, kubeProxyRuns }: Recorded,
  { iptables, elsewhere }: Pick<Leftovers, 'iptables' | 'elsewhere'>,
): Promise<readonly string[]> {
  if (record === undefined || iptables.length > 0) return []
  const former = record.routeLocalnet
  const hasLegacy = elsewhere.legacyTables.some(
    table => typeof table.chains === 'string' || kubeProxyChains(table).length > 0,
  )
  if (former !== undefined && (kubeProxyRuns || hasLegacy || (await hasNamedChains())))
    return [`left table ${NAME} and route_localnet=${ROUTE_LOCALNET.value}: another proxy may need it`]
  const restored = former === undefined ? [] : await restore(former)
  await removeIptablesRecord(THIS_KERNEL)
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
async function hasNamedChains(): Promise<boolean> {
  const client = createNftClient({ transport: KERNEL.netfilter(), clock: systemClock })
  try {
    const chains = (name: string): boolean => namedPrefixOf(name) !== undefined
    const { observed } = await client.listChains([{ family: 'ip', table: 'nat', chains }])
    return [...observed.values()].some(table => [...table.chains.keys()].some(chains))
  } finally {
    await client.close()
  }
}
