import type { Config } from '../config/config.ts'
import type { FlagReader } from '../config/flag.ts'
import type { Settings } from '../config/settings.ts'
import { IpsetClient } from '../kernel/ipset/client.ts'
import { createNftClient } from '../kernel/nft/client.ts'
import type { NftFamily, Table } from '../kernel/nft/state.ts'
import { readLogGroup } from './common/logs.ts'
import { iptables } from './iptables/mode.ts'
import { readIptablesOptions } from './iptables/settings.ts'
import { ipvs } from './ipvs/mode.ts'
import { readIpvsOptions } from './ipvs/settings.ts'
import type { HeldMode, KernelAccess, KernelRead, Mode } from './mode.ts'
import { nftables } from './nftables/mode.ts'
import { userspace } from './userspace/mode.ts'
import { chainNames } from './xt-common/layout.ts'
import { type ReadChain, readIptables } from './xt-common/read-chains.ts'

/** Every mode of this build. */
export const MODES: readonly Mode[] = [
  nftables, // the default
  ipvs,
  iptables,
  userspace, // for debugging
]

export const MODE_NAMES: readonly string[] = MODES.map(({ name }) => name)

/** The device whose addresses belong to Services, not to this machine. Only one mode has a device. */
export const MODE_DEVICE = MODES.find(({ device }) => device !== undefined)?.device

export const DEFAULT_MODE = nftables.name

/** Options of single modes. */
export type ModeOptions = Pick<Config, 'logRejects' | 'ipvs' | 'iptables'>

/** Reads the options of each mode, whichever mode is configured. Errors go to the settings and the reader. */
export function readModeOptions(settings: Settings, reader: FlagReader): ModeOptions {
  return {
    logRejects: readLogGroup(reader),
    ipvs: readIpvsOptions(settings, reader),
    iptables: readIptablesOptions(settings, reader),
  }
}

/** Finds the mode of a configuration, which the configuration's reader has checked. Throws for a name without a mode. */
export function findMode(name: string): Mode {
  const mode = MODES.find(each => each.name === name)
  if (mode === undefined) throw new Error(`no proxy mode is called ${name}`)
  return mode
}

/** Whether connections go through this process, all or some. */
export function relaysAny(config: Pick<Config, 'proxyMode' | 'nodePortAddresses' | 'featureGates'>): boolean {
  const { relays, relaysSome } = findMode(config.proxyMode)
  return relays === true || relaysSome?.(config) === true
}

/** Gives the named proxy that has a table of this name; undefined for none. A hint: other programs may use such names. */
export function proxyOfTable(table: string): string | undefined {
  if (MODES.some(({ tableName }) => tableName(undefined) === table)) return undefined
  return MODES.map(mode => mode.proxyOfTable?.(table)).find(proxy => proxy !== undefined)
}

/** Tests whether `ask` gives true for any mode. */
export async function anyMode(ask: (mode: Mode) => Promise<boolean> | undefined): Promise<boolean> {
  for (const mode of MODES) if ((await ask(mode)) === true) return true
  return false
}

/** Gives why the rules of a mode cannot be proved; undefined where they can. */
export function whyNotProvable({ proxyMode }: Pick<Config, 'proxyMode'>): string | undefined {
  const mode = findMode(proxyMode)
  const provable = MODES.filter(({ isProvable, proving }) => isProvable === true || proving !== undefined)
  if (provable.includes(mode)) return undefined
  const titles = provable.map(({ title }) => title)
  return `${mode.title} mode has no evaluator; ${titles.slice(0, -1).join(', ')} and ${titles.at(-1)} mode have one`
}

interface WhatToRead extends KernelAccess {
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
