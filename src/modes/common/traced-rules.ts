import type { Ip } from '../../base/ip.ts'
import type { IpvsHeld } from '../../kernel/ipvs/state.ts'
import type { Table } from '../../kernel/nft/state.ts'
import type { Backend } from '../../model/frontend.ts'

/** Everything that decides about packets in a mode, as plain values. A mode makes them; it follows no packet itself. */
export interface TracedRules {
  /** Tables of our own, and chains of iptables as nf_tables holds them. */
  readonly tables: readonly Table[]
  /** Prints a rule that nft does not print as its program does; undefined for others. */
  readonly print?: (place: TracedPlace) => string | undefined
  /** Virtual servers, ipsets, and the addresses that the mode gives to this node. */
  readonly ipvs?: IpvsHeld
  /** The lists of `-m recent` that the rules name; a list exists no longer than such a rule. */
  readonly lists?: ReadonlySet<string>
  readonly listeners?: TracedListeners
}

export interface TracedPlace {
  /** `ip nat` */
  readonly table: string
  readonly chain: string
  /** From 1; undefined for a virtual server. */
  readonly rule: number | undefined
}

/** The listeners of a mode in which this process carries connections. Before they listen, they have numbers for ports. */
export interface TracedListeners {
  /** The maps whose values are listeners. */
  readonly maps: ReadonlySet<string>
  at(protocol: number, ip: Ip, port: number): TracedListener | undefined
}

export interface TracedListener {
  /** The name under which clients are remembered. */
  readonly key: string
  /** The name of the Service port, for people. */
  readonly name: string
  readonly protocol: 'TCP' | 'UDP'
  /** The list of endpoints that the listener serves. */
  readonly list: string
  readonly endpoints: readonly Backend[]
  /** 0 where clients are not remembered. */
  readonly affinityTimeoutS: number
}
