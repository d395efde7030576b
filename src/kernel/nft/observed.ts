import type { Octets } from '../../base/octets.ts'
import type { ChainHook } from './state.ts'

/** What a table that others use as well held when it was read, as far as it concerns us. */
export interface ObservedTable {
  /** By name: chains of ours, and the chains in which our jumps belong. */
  readonly chains: ReadonlyMap<string, ObservedChain>
}

export interface ObservedChain {
  readonly name: string
  readonly hook: ChainHook | undefined
  readonly rules: readonly ObservedRule[]
}

export interface ObservedRule {
  /** The kernel's number for it. */
  readonly handle: bigint
  /** As CompiledRule.compiled: counters at zero. */
  readonly compiled: Octets
}

/** By `ip nat`. A table that does not exist is not in it. */
export type Observed = ReadonlyMap<string, ObservedTable>
