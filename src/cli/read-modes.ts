import { systemClock } from '../base/clock.ts'
import { KERNEL, openNetfilter } from '../daemon/open.ts'
import { createIpsetClient } from '../kernel/ipset/client.ts'
import { createNftClient } from '../kernel/nft/client.ts'
import type { NftFamily, Table } from '../kernel/nft/state.ts'
import type { HeldMode, KernelRead } from '../modes/mode.ts'
import { MODES } from '../modes/registry.ts'
import { chainNames } from '../modes/xt-common/layout.ts'
import type { ReadChain } from '../modes/xt-common/read-chains.ts'
import { readIptables } from '../modes/xt-common/read-iptables.ts'

interface WhatToRead {
  readonly families: readonly NftFamily[]
  /** The name of the proxy; undefined for the unnamed one. */
  readonly proxyName: string | undefined
}

/** Kernel state of kprobe in every mode. */
interface ReadModes {
  readonly held: readonly HeldMode[]
  /** All chains of the tables of iptables. */
  readonly chains: readonly ReadChain[]
}

/** Throws if the kernel cannot be read. */
export async function readModes(
  { families, proxyName: proxy }: WhatToRead,
  names: KernelRead['names'] = () => undefined,
): Promise<ReadModes> {
  const tables = await readTables({ families, proxyName: proxy })
  const here = { sockets: KERNEL, clock: systemClock }
  const chains = await readIptables(here, families, chainNames(proxy))
  const held: HeldMode[] = []
  for (const mode of MODES) {
    const found = await mode.held({ ...here, families, proxy, tables, chains, names })
    if (found !== undefined) held.push(found)
  }
  return { held, chains }
}

/** Reads kprobe's tables of all modes: during a switch between modes, both have tables. */
export async function readTables({ families, proxyName }: WhatToRead): Promise<readonly Table[]> {
  const ipsets = createIpsetClient({ transport: openNetfilter(), clock: systemClock })
  const client = createNftClient({ transport: openNetfilter(), clock: systemClock, ipsets })
  try {
    const names = MODES.flatMap(({ tableName }) => tableName(proxyName) ?? [])
    const places = names.flatMap(name => families.map(family => ({ family, name })))
    return (await client.list(places)).ruleset.tables
  } finally {
    await client.close()
    await ipsets.close()
  }
}
