import type { PersistentMap } from '../../base/collections.ts'
import type { Octets } from '../../base/octets.ts'

export type NftFamily = 'ip' | 'ip6'
/** Families whose chains IP packets pass at the hooks of netfilter. */
export type HookFamily = NftFamily | 'inet'

export function isHookFamily(family: string): family is HookFamily {
  return family === 'ip' || family === 'ip6' || family === 'inet'
}

export interface TableName {
  readonly family: NftFamily
  readonly name: string
}

/** The kprobe tables of nf_tables, whole: a plain, immutable value, read from the kernel or computed. */
export interface Ruleset {
  readonly tables: readonly Table[]
}

export type AnyTable = Omit<Table, 'family'> & { readonly family: HookFamily }

export interface Table extends TableName {
  /** NFT_TABLE_F_*. */
  readonly flags: number
  readonly comment: string | undefined
  readonly chains: ReadonlyMap<string, Chain>
  readonly sets: ReadonlyMap<string, NftSet>
  /**
   * Elements of all sets of the table, grouped by Service. Versions share equal groups, so a comparison walks only
   * groups that changed. The kernel does not know the groups: comparing two tables with different groups gives the
   * same difference.
   */
  readonly elements: PersistentMap<ElementGroup>
}

export interface Chain {
  readonly name: string
  readonly hook: ChainHook | undefined
  readonly rules: readonly Rule[]
}

export interface ChainHook {
  readonly type: 'nat' | 'filter' | 'route'
  /** NF_INET_*. */
  readonly hooknum: number
  readonly priority: number
  /** Set only when it is not NF_ACCEPT: kprobe writes no other policy, but another program may have changed it. */
  readonly policy?: number
}

export interface NftSet {
  readonly name: string
  /** NFT_SET_*. */
  readonly flags: number
  /** nft's number for the datatype (6 bits per field of a concatenation), so that nft can list the set. */
  readonly keyType: number
  /** Bytes. */
  readonly keyLength: number
  /** For maps only; NFT_DATA_VERDICT for verdict maps. */
  readonly dataType: number | undefined
  readonly dataLength: number | undefined
  /** Maximum number of elements; 0 leaves it to the kernel. */
  readonly size: number
  /** Milliseconds; 0 for none. */
  readonly timeoutMs: number
  /** Each element counts the packets that matched it (NFTA_SET_EXPR). The counts are not part of the state. */
  readonly counted?: true
  /** NFTA_SET_USERDATA: the byte order of key and data, which nft needs to print the set. */
  readonly userdata: Octets
}

/** The elements of one group, in no particular order; each key appears once in a set of a table. */
export type ElementGroup = readonly Element[]

export interface Element {
  readonly set: string
  readonly key: Octets
  readonly data: ElementData
  /** Shown by nft beside the element; empty for none. */
  readonly comment: string
  /** Remaining milliseconds of an element that packets created; 0 otherwise. */
  readonly expiresMs?: number
  /** The last key of an interval, in sets of concatenated intervals. */
  readonly keyEnd?: Octets
  /** In other sets of intervals, the key is behind the last one of an interval. */
  readonly isEnd?: true
}

export type ElementData = Octets | Verdict | undefined

/** The observed state of a table that other programs use as well, limited to the chains that concern kprobe. */
export interface ObservedTable {
  /** By name: chains of ours, and the chains that contain our jumps. */
  readonly chains: ReadonlyMap<string, ObservedChain>
}

export interface ObservedChain {
  readonly name: string
  readonly hook: ChainHook | undefined
  readonly rules: readonly ObservedRule[]
}

export interface ObservedRule {
  readonly handle: bigint
  /** As CompiledRule.compiled: counters are zero. */
  readonly compiled: Octets
  readonly userdata?: Octets | undefined
}

/** Tables by name, as `ip nat`; a table that does not exist is absent. */
export type Observed = ReadonlyMap<string, ObservedTable>

/**
 * The expressions of nf_tables that kprobe writes, as values. Registers are NFT_REG32_00 + n, given as n (0 to 15);
 * numbers are as in the kernel's headers (linux/netfilter/nf_tables.h).
 */
export type Expression =
  | {
      readonly kind: 'payload'
      readonly base: number
      readonly offset: number
      readonly length: number
      readonly dreg: number
    }
  | { readonly kind: 'meta'; readonly key: number; readonly dreg: number }
  | { readonly kind: 'meta-set'; readonly key: number; readonly sreg: number }
  | { readonly kind: 'ct'; readonly key: number; readonly dreg: number }
  | { readonly kind: 'cmp'; readonly op: 'eq' | 'neq'; readonly sreg: number; readonly data: Octets }
  | {
      readonly kind: 'bitwise'
      readonly sreg: number
      readonly dreg: number
      readonly mask: Octets
      readonly xor: Octets
    }
  /** Looks up a key. `dreg` undefined tests membership; 'verdict' takes the verdict of a verdict map. */
  | {
      readonly kind: 'lookup'
      readonly set: string
      readonly sreg: number
      readonly dreg: number | 'verdict' | undefined
      readonly inverted: boolean
    }
  | { readonly kind: 'verdict'; readonly verdict: Verdict }
  /** NFT_NG_RANDOM modulo `modulus`, plus `offset`. */
  | {
      readonly kind: 'numgen'
      readonly modulus: number
      readonly offset?: number | undefined
      readonly dreg: number
    }
  /** Jenkins hash of `length` bytes of registers, scaled to numbers below `modulus`, plus `offset`: see jhash.ts. */
  | {
      readonly kind: 'jhash'
      readonly sreg: number
      readonly length: number
      readonly modulus: number
      readonly seed: number
      readonly offset?: number | undefined
      readonly dreg: number
    }
  /** Translates the destination. Without a port, the packet keeps its own. Protocols without ports are translated too. */
  | {
      readonly kind: 'dnat'
      readonly family: 'ip' | 'ip6'
      readonly addressReg: number
      readonly portReg: number | undefined
    }
  /** Flags are NF_NAT_RANGE_*. */
  | { readonly kind: 'masquerade'; readonly flags: number }
  /** ICMP or ICMPv6 code. */
  | { readonly kind: 'reject'; readonly code: number }
  /** RTN_* type of an address: `flags` are NFTA_FIB_F_*. */
  | { readonly kind: 'fib'; readonly flags: number; readonly dreg: number }
  | {
      readonly kind: 'dynset'
      readonly op: 'add' | 'update' | 'delete'
      readonly set: string
      readonly keyReg: number
      readonly dataReg: number | undefined
      readonly timeoutMs: number
    }
  | { readonly kind: 'counter' }
  /** Matches at most so many packets; a burst may come at once. */
  | { readonly kind: 'limit'; readonly perSecond: number; readonly burst: number }
  /** Copies the first bytes of the packet, after `prefix`, to the readers of an NFLOG group. */
  | {
      readonly kind: 'log'
      readonly group: number
      readonly prefix: string
      readonly packetBytes: number
    }
  /**
   * Matches a packet that is in an ipset (iptables' `-m set --match-set`). The dimensions select, in order, the
   * packet's source or destination for each part of an entry. A set with fewer dimensions ignores the rest; a set
   * with more, or of another family, matches no packet.
   */
  | {
      readonly kind: 'ipset'
      /** Name of the set, or `[ipset 7]` for a rule that was read and whose set has no known name. */
      readonly set: string
      /** 1 to 6 (IPSET_DIM_MAX). */
      readonly dimensions: readonly ('src' | 'dst')[]
      readonly inverted: boolean
    }
  /** An xtables match, by nft_compat; `info` is its structure, in the length of the revision. */
  | { readonly kind: 'match'; readonly name: string; readonly revision: number; readonly info: Octets }
  /** An xtables target, by nft_compat. */
  | { readonly kind: 'target'; readonly name: string; readonly revision: number; readonly info: Octets }
  /** An expression that kprobe does not write, kept as bytes so that a comparison detects it. */
  | { readonly kind: 'unknown'; readonly name: string; readonly data: Octets }

/** The xtables match that carries a comment (struct xt_comment_info) and matches every packet. */
export const COMMENT_MATCH = 'comment'

/** NFT_GOTO and the like, with the chain of a jump. */
export interface Verdict {
  readonly code: number
  readonly chain: string | undefined
}

export interface Rule {
  readonly expressions: readonly Expression[]
  /** Shown by nft; empty for none. */
  readonly comment: string
}

/** Returns the chains that verdicts among the expressions lead to. */
export function targetsOf(expressions: readonly Expression[]): readonly string[] {
  return expressions.flatMap(each =>
    each.kind === 'verdict' && each.verdict.chain !== undefined ? [each.verdict.chain] : [],
  )
}

/** Returns whether a rule can decide about a packet or change it. Rules that only count or log cannot. */
export function hasEffect({ expressions }: Rule): boolean {
  return expressions.some(
    each =>
      each.kind === 'verdict' ||
      each.kind === 'dnat' ||
      each.kind === 'masquerade' ||
      each.kind === 'reject' ||
      each.kind === 'meta-set' ||
      each.kind === 'dynset' ||
      each.kind === 'target' ||
      (each.kind === 'lookup' && each.dreg === 'verdict') ||
      (each.kind === 'unknown' && !isNote(each)),
  )
}

/** Returns whether an expression only counts or logs. */
export function isNote(expression: Expression): boolean {
  const { kind } = expression
  return kind === 'counter' || kind === 'log' || (kind === 'unknown' && NOTES.includes(expression.name))
}

const NOTES: readonly string[] = ['log', 'counter']

export function isLogOnly(rule: Rule): boolean {
  return rule.expressions.some(({ kind }) => kind === 'log') && !hasEffect(rule)
}

/** A rule in the kernel's bytes: there are tens of thousands of iptables rules, and bytes are fast to compare. */
export interface CompiledRule {
  /**
   * The expressions as in NFTA_RULE_EXPRESSIONS, without that attribute's own header, in the order and form of the
   * kernel's listings; counters are zero.
   */
  readonly compiled: Octets
  /** NFTA_RULE_COMPAT_PROTO: the protocol of `-p`, for xtables; 0 for none. The kernel does not report it. */
  readonly protocol: number
  /** NFTA_RULE_COMPAT_FLAGS: NFT_RULE_COMPAT_F_INV for `! -p`. */
  readonly protocolInverted: boolean
  /** NFTA_RULE_USERDATA: the kernel keeps it with the rule, and ignores it. */
  readonly userdata?: Octets | undefined
}

export function isCompiled(rule: Rule | CompiledRule): rule is CompiledRule {
  return 'compiled' in rule
}
