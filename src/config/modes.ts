import type { Config } from './config.ts'
import type { FlagReader } from './flag.ts'
import { IPTABLES, readIptablesOptions } from './modes/iptables.ts'
import { IPVS, readIpvsOptions } from './modes/ipvs.ts'
import { readLogGroup } from './modes/log-rejects.ts'
import type { ModeRow } from './modes/mode-row.ts'
import { NFTABLES } from './modes/nftables.ts'
import { USERSPACE } from './modes/userspace.ts'
import type { Settings } from './settings.ts'

/** The rows of every mode of this build, in the order of --help. The first is the default. */
export const MODE_ROWS: readonly ModeRow[] = [
  NFTABLES,
  IPVS,
  IPTABLES,
  USERSPACE, // for debugging
]

export const MODE_NAMES: readonly string[] = MODE_ROWS.map(({ name }) => name)

export const DEFAULT_MODE = NFTABLES.name

/** Finds the row of a configured mode, which the reader of the configuration has checked. Throws for a name without a mode. */
export function rowOf(name: string): ModeRow {
  const row = MODE_ROWS.find(each => each.name === name)
  if (row === undefined) throw new Error(`no proxy mode is called ${name}`)
  return row
}

export type ModeOptions = Pick<Config, 'logRejects' | 'ipvs' | 'iptables'>

/** Reads the options of each mode, whichever mode is configured. Errors go to the settings and the reader. */
export function readModeOptions(settings: Settings, reader: FlagReader): ModeOptions {
  return {
    logRejects: readLogGroup(reader),
    ipvs: readIpvsOptions(settings, reader),
    iptables: readIptablesOptions(settings, reader),
  }
}

export function forwardsAny(
  config: Pick<Config, 'proxyMode' | 'nodePortAddresses' | 'featureGates'>,
): boolean {
  const { forwards, forwardsSome } = rowOf(config.proxyMode)
  return forwards === true || forwardsSome?.(config) === true
}

/** Gives why the rules of a mode cannot be proved; undefined where they can. */
export function whyNotProvable({ proxyMode }: Pick<Config, 'proxyMode'>): string | undefined {
  const mode = rowOf(proxyMode)
  const provable = MODE_ROWS.filter(({ isProvable }) => isProvable === true)
  if (provable.includes(mode)) return undefined
  const titles = provable.map(({ title }) => title)
  return `${mode.title} mode has no evaluator; ${titles.slice(0, -1).join(', ')} and ${titles.at(-1)} mode have one`
}
