import type { Ip } from '../../base/ip.ts'
import type { Octets } from '../../base/octets.ts'

/** A rule of iptables as a value: what `iptables -A CHAIN` takes, and what iptables-save prints. */
export interface XtRule {
  readonly inInterface?: XtInterface
  readonly outInterface?: XtInterface
  readonly protocol?: XtProtocol
  readonly source?: XtAddress
  readonly destination?: XtAddress
  /** In the order of their `-m`, which is that in which they are tried. */
  readonly matches: readonly XtMatch[]
  /** Undefined for a rule that only counts. */
  readonly target: XtTarget | undefined
}

export interface XtInterface {
  /** With a `+` at its end: all whose names begin so. */
  readonly name: string
  readonly inverted: boolean
}

export interface XtProtocol {
  /** IPPROTO_*. */
  readonly number: number
  readonly inverted: boolean
}

export interface XtAddress {
  readonly ip: Ip
  /** As long as the address. Any bits, not only a prefix: 0.0.0.255 asks for the last byte. */
  readonly mask: Octets
  readonly inverted: boolean
}

/** Both ends belong to it. */
export interface XtPorts {
  readonly from: number
  readonly to: number
  readonly inverted: boolean
}

/** Matches of xtables, by the names and in the words of iptables-extensions(8). */
export type XtMatch =
  /** At most 255 bytes. */
  | { readonly kind: 'comment'; readonly text: string }
  | {
      readonly kind: 'tcp' | 'udp' | 'sctp'
      readonly sourcePorts?: XtPorts
      readonly destinationPorts?: XtPorts
    }
  /** `states` are XT_CONNTRACK_STATE_* bits; DNAT is XT_CONNTRACK_STATE_DNAT among them. */
  | { readonly kind: 'conntrack'; readonly states: number; readonly inverted: boolean }
  /** `--mode random`: `probability` in units of 1 / 2^31, as the kernel has it. */
  | { readonly kind: 'statistic'; readonly probability: number }
  /** By source address, all bits of it. `seconds` 0 for none. */
  | {
      readonly kind: 'recent'
      readonly mode: 'set' | 'rcheck'
      readonly name: string
      readonly seconds: number
      readonly reap: boolean
    }
  | { readonly kind: 'mark'; readonly mark: number; readonly mask: number; readonly inverted: boolean }
  /** XT_ADDRTYPE_* bits of xt_addrtype.h; 0 asks nothing. */
  | {
      readonly kind: 'addrtype'
      readonly sourceTypes: number
      readonly destinationTypes: number
      readonly sourceInverted?: true
      readonly destinationInverted?: true
    }
  | {
      readonly kind: 'set'
      readonly set: string
      readonly dimensions: readonly ('src' | 'dst')[]
      readonly inverted: boolean
    }
  | { readonly kind: 'nfacct'; readonly name: string }
  /** `--physdev-is-in` and its negation: whether the packet came in by a port of a bridge. */
  | { readonly kind: 'physdev-is-in'; readonly inverted: boolean }
  /** `-m ipvs --vproto NUMBER --vaddr ADDRESS --vport PORT`; `vproto` is IPPROTO_*. */
  | { readonly kind: 'ipvs'; readonly vproto?: number; readonly vaddr: XtAddress; readonly vport: number }
  | XtUnknown

export type XtTarget =
  | { readonly kind: 'ACCEPT' | 'DROP' | 'RETURN' }
  | { readonly kind: 'jump' | 'goto'; readonly chain: string }
  /** `with`: icmp-port-unreachable and the like, in the words of iptables. */
  | { readonly kind: 'REJECT'; readonly with: string }
  /** `--set-xmark value/mask`: clears the bits of the mask, then flips those of the value. */
  | { readonly kind: 'MARK'; readonly value: number; readonly mask: number }
  | { readonly kind: 'MASQUERADE'; readonly randomFully: boolean }
  | { readonly kind: 'DNAT'; readonly ip: Ip; readonly port: number }
  | XtUnknown

/** What others wrote and we have no words for: kept as it is. */
export interface XtUnknown {
  readonly kind: 'unknown'
  /** Of the match or target; of an expression, its name, which is empty for bytes that are no expression. */
  readonly name: string
  /** Of a match or target; 0 for an expression. */
  readonly revision: number
  readonly info: Octets
  /** An expression of nf_tables that iptables would not write so. */
  readonly native?: true
}
