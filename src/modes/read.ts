import { createIpsetClient } from '../kernel/ipset/client.ts'
import { createNftClient } from '../kernel/nft/client.ts'
import type { NftFamily, Table } from '../kernel/nft/state.ts'
import type { HeldMode, KernelRead, ModeContext } from './mode.ts'
import { MODES } from './registry.ts'
import { chainNames } from './xt-common/layout.ts'
import { type ReadChain, readIptables } from './xt-common/read-chains.ts'

interface WhatToRead extends Pick<ModeContext, 'sockets' | 'clock'> {
  readonly families: readonly NftFamily[]
  /** The name of the proxy; undefined for the unnamed one. */
  readonly proxyName: string | undefined
}

/** Kernel state of kprobe in every mode. */
export interface ReadModes {
  readonly held: readonly HeldMode[]
  /** All chains of the tables of iptables. */
  readonly chains: readonly ReadChain[]
}

/** Throws if the kernel cannot be read. */
export async function readModes(
  what: WhatToRead,
  names: KernelRead['names'] = () => undefined,
): Promise<ReadModes> {
  const { families, proxyName: proxy, sockets, clock } = what
  const tables = await readTables(what)
  const chains = await readIptables(what, families, chainNames(proxy))
  const held: HeldMode[] = []
  for (const mode of MODES) {
    const found = await mode.held({ sockets, clock, families, proxy, tables, chains, names })
    if (found !== undefined) held.push(found)
  }
  return { held, chains }
}

/** Reads kprobe's tables of all modes: during a switch between modes, both have tables. */
export async function readTables({
  families,
  proxyName,
  sockets,
  clock,
}: WhatToRead): Promise<readonly Table[]> {
  const ipsets = createIpsetClient({ transport: sockets.netfilter(), clock })
  const client = createNftClient({ transport: sockets.netfilter(), clock, ipsets })
  try {
    const names = MODES.flatMap(({ tableName }) => tableName(proxyName) ?? [])
    const places = names.flatMap(name => families.map(family => ({ family, name })))
    return (await client.list(places)).ruleset.tables
  } finally {
    await client.close()
    await ipsets.close()
  }
}
