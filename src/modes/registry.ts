import { IpsetClient } from '../kernel/ipset/client.ts'
import { createNftClient } from '../kernel/nft/client.ts'
import type { NftFamily, Table } from '../kernel/nft/state.ts'
import { iptables } from './iptables/mode.ts'
import { ipvs } from './ipvs/mode.ts'
import type { HeldMode, KernelAccess, KernelRead, Mode } from './mode.ts'
import { nftables } from './nftables/mode.ts'
import { userspace } from './userspace/mode.ts'
import { chainNames } from './xt-common/layout.ts'
import { type ReadChain, readIptables } from './xt-common/read-chains.ts'

/** Every mode of this build, in the order of their rows in config/modes.ts. */
export const MODES: readonly Mode[] = [
  nftables,
  ipvs,
  iptables,
  userspace, // for debugging
]

/** The device whose addresses belong to Services, not to this machine. Only one mode has a device. */
export const MODE_DEVICE = MODES.find(({ device }) => device !== undefined)?.device

/** Finds the mode of a configuration, which the configuration's reader has checked. Throws for a name without a mode. */
export function findMode(name: string): Mode {
  const mode = MODES.find(each => each.name === name)
  if (mode === undefined) throw new Error(`no proxy mode is called ${name}`)
  return mode
}

/** Gives the named proxy that has a table of this name; undefined for none. A hint: other programs may use such names. */
export function proxyOfTable(table: string): string | undefined {
  if (MODES.some(({ tableName }) => tableName(undefined) === table)) return undefined
  return MODES.map(mode => mode.proxyOfTable?.(table)).find(proxy => proxy !== undefined)
}

/** Tests whether any mode satisfies `ask`. */
export async function anyMode(ask: (mode: Mode) => Promise<boolean> | undefined): Promise<boolean> {
  for (const mode of MODES) if ((await ask(mode)) === true) return true
  return false
}

interface WhatToRead extends KernelAccess {
  readonly families: readonly NftFamily[]
  readonly proxyName: string | undefined
}

export interface ReadModes {
  readonly held: readonly HeldMode[]
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
  const ipsets = new IpsetClient({ transport: sockets.netfilter(), clock })
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
