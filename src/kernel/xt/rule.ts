import type { Ip } from '../../base/ip.ts'
import type { Octets } from '../../base/octets.ts'

/** An iptables rule as a value: the input of `iptables -A CHAIN`, and the output of iptables-save. */
export interface XtRule {
  readonly inInterface?: XtInterface
  readonly outInterface?: XtInterface
  readonly protocol?: XtProtocol
  readonly source?: XtAddress
  readonly destination?: XtAddress
  /** In the order of their `-m`, in which the kernel evaluates them. */
  readonly matches: readonly XtMatch[]
  /** Undefined for a rule that only counts packets. */
  readonly target: XtTarget | undefined
}

export interface XtInterface {
  /** A `+` at its end matches all names with this prefix. */
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
  /** As long as the address. Any bits, not only a prefix: 0.0.0.255 compares the last byte. */
  readonly mask: Octets
  readonly inverted: boolean
}

/** A range of ports, including both ends. */
export interface XtPorts {
  readonly from: number
  readonly to: number
  readonly inverted: boolean
}

/** The xtables matches, with the names and words of iptables-extensions(8). */
export type XtMatch =
  /** At most 255 bytes. */
  | { readonly kind: 'comment'; readonly text: string }
  | {
      readonly kind: 'tcp' | 'udp' | 'sctp'
      readonly sourcePorts?: XtPorts
      readonly destinationPorts?: XtPorts
    }
  /** `states` are XT_CONNTRACK_STATE_* bits, including XT_CONNTRACK_STATE_DNAT. */
  | { readonly kind: 'conntrack'; readonly states: number; readonly inverted: boolean }
  /** `--mode random`: `probability` in units of 1 / 2^31, as in the kernel. */
  | { readonly kind: 'statistic'; readonly probability: number }
  /** By the whole source address. `seconds` is 0 for none. */
  | {
      readonly kind: 'recent'
      readonly mode: 'set' | 'rcheck'
      readonly name: string
      readonly seconds: number
      readonly reap: boolean
    }
  | { readonly kind: 'mark'; readonly mark: number; readonly mask: number; readonly inverted: boolean }
  /** XT_ADDRTYPE_* bits of xt_addrtype.h; 0 matches every type. */
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
  /** `--physdev-is-in` and its negation: whether the packet arrived through a bridge port. */
  | { readonly kind: 'physdev-is-in'; readonly inverted: boolean }
  /** `-m ipvs --vproto NUMBER --vaddr ADDRESS --vport PORT`; `vproto` is IPPROTO_*. */
  | { readonly kind: 'ipvs'; readonly vproto?: number; readonly vaddr: XtAddress; readonly vport: number }
  /** `-m limit --limit PER_SECOND/sec --limit-burst BURST`. */
  | { readonly kind: 'limit'; readonly perSecond: number; readonly burst: number }
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
  /** Copies the first bytes of each packet, at once, after `prefix`, to the reader of an NFLOG group. */
  | { readonly kind: 'NFLOG'; readonly group: number; readonly prefix: string; readonly packetBytes: number }
  | XtUnknown

/** A part of another program's rule that has no value type: kept unchanged. */
export interface XtUnknown {
  readonly kind: 'unknown'
  /** Name of the match, target or expression; empty for bytes that are not an expression. */
  readonly name: string
  /** Revision of a match or target; 0 for an expression. */
  readonly revision: number
  readonly info: Octets
  /** An nf_tables expression in a form that iptables does not write. */
  readonly native?: true
}

/** Returns the chain that the rule leads to; undefined for a rule that leads to none. */
export function targetChain({ target }: XtRule): string | undefined {
  return target?.kind === 'jump' || target?.kind === 'goto' ? target.chain : undefined
}
