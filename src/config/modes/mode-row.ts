import type { Config } from '../config.ts'
import type { PathOf } from '../fields.ts'
import type { FlagSpec } from '../flag.ts'

/** The settings that every mode has: the fields of the file, in its own section or that of another mode, by the names that "ofMode" of a field gives them. */
export interface ModeFields {
  readonly masqueradeAll: PathOf<'bool'>
  readonly masqueradeBit: PathOf<'int32'>
  readonly minSyncPeriod: PathOf<'duration'>
  readonly syncPeriod: PathOf<'duration'>
}

export interface ModeSettings extends ModeFields {
  readonly defaultSyncPeriod: bigint
  /** Node ports are served on every address by default, as kube-proxy's are, and not only on primary ones. */
  readonly everyAddress?: true
  /** The kernel counts connections at each endpoint. */
  readonly countsConnections?: true
  /** Divides connections by kprobe.io/balance and kprobe.io/weights. A mode without it refuses these annotations. */
  readonly balances?: true
  /** Takes silent endpoints out: kprobe.io/fail-over. A mode without it refuses the annotation. */
  readonly failsOver?: true
  /** Flags of kube-proxy that decide the wanted state in this mode alone. Every mode checks them, as kube-proxy does. */
  readonly flags?: readonly FlagSpec[]
  /** Flags of kube-proxy for the pace of this mode. */
  readonly paceFlags?: readonly FlagSpec[]
  /** kprobe's own flags that work in this mode alone. */
  readonly ownFlags?: readonly FlagSpec[]
  /** Flags with which another command computes the same state as a daemon with this configuration. */
  flagTexts?(config: Config): Readonly<Record<string, string>>
}

/** The part of a mode that the configuration needs. src/config/modes.ts lists the rows. */
export interface ModeRow {
  readonly name: string
  /** The name in texts: `IPVS` for `ipvs`. */
  readonly title: string
  /** The text of --help after the name of the mode. */
  readonly purpose?: string
  readonly settings: ModeSettings
  /** Fields of the configuration that the plane and sysctls of this mode follow from, beside those of every mode. */
  readonly fields?: readonly (keyof Config)[]
  /** The reason for which a proxy with a name cannot use the mode. */
  readonly notNamed?: string
  /** The table of our own in each family, by the name of the proxy; undefined where the mode has none. */
  tableName(proxy: string | undefined): string | undefined
  /** The name of the proxy that has a table of this name; undefined for other tables. A hint: other programs may use such names. */
  proxyOfTable?(table: string): string | undefined
  /** All connections go through this process. */
  readonly forwards?: true
  /** Some connections go through this process, beside those that the kernel sends to endpoints. */
  forwardsSome?(config: Pick<Config, 'nodePortAddresses' | 'featureGates'>): boolean
  readonly isProvable?: true
}
