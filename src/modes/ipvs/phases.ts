import type { Growth } from '../../kernel/ipset/grow.ts'
import type { GroupedEntries } from '../../kernel/ipset/operation.ts'
import type { Ipset } from '../../kernel/ipset/state.ts'
import type { IpvsOperation } from '../../kernel/ipvs/operation.ts'
import type { Transaction } from '../../kernel/nft/operation.ts'
import type { Language } from '../../kernel/xt/language.ts'
import type { ScopeOperations } from '../../kernel/xt/scope-operation.ts'
import type { PlacedAddress } from './state.ts'

/**
 * The operations that one subsystem of the kernel receives at one time. The phases of a plan come in the
 * order of PHASE_ORDER, so that at no moment there is an address without its server, or a server without its
 * sets. Additions go from the sets up to the addresses, removals the other way round.
 */
export type Phase =
  | { readonly kind: 'add-sets'; readonly sets: readonly SetChange[] }
  | { readonly kind: 'add-entries'; readonly lists: readonly GroupedEntries[] }
  /**
   * Writes kube-proxy's chains in the tables of iptables. `take-chains` replaces chains of its iptables mode
   * with the same names, which serve until everything else is in place.
   */
  | ({ readonly kind: 'add-chains' | 'take-chains' } & ChainWork)
  /** Adds rules and elements, without redirects. */
  | { readonly kind: 'add-rules'; readonly transaction: Transaction }
  | { readonly kind: 'add-device'; readonly device: string }
  /** Adds virtual servers and their new real servers. */
  | { readonly kind: 'add-servers'; readonly operations: readonly IpvsOperation[] }
  | { readonly kind: 'add-addresses'; readonly device: string; readonly addresses: readonly PlacedAddress[] }
  /** Adds elements that redirect packets to another address, which must exist before. */
  | { readonly kind: 'add-detours'; readonly transaction: Transaction }
  | { readonly kind: 'remove-detours'; readonly transaction: Transaction }
  | {
      readonly kind: 'remove-addresses'
      readonly device: string
      readonly addresses: readonly PlacedAddress[]
    }
  /** Removes the device only if it has no address of another program. */
  | { readonly kind: 'remove-device'; readonly device: string }
  /** Drains or deletes real servers, and deletes virtual servers. */
  | { readonly kind: 'remove-servers'; readonly operations: readonly IpvsOperation[] }
  /** Removes elements and the rules and sets that held them. */
  | { readonly kind: 'remove-rules'; readonly transaction: Transaction }
  /** Removes these chains, except chains that kube-proxy's iptables mode still uses. */
  | ({ readonly kind: 'remove-chains' } & ChainWork)
  | { readonly kind: 'remove-entries'; readonly lists: readonly GroupedEntries[] }
  | { readonly kind: 'remove-sets'; readonly names: readonly string[] }

interface ChainWork {
  readonly operations: ScopeOperations
  /** Gives the name of an ipset whose number a rule contains. */
  readonly nameOfIpset: Language['nameOfIpset']
}

export const PHASE_ORDER: readonly Phase['kind'][] = [
  'add-sets',
  'add-entries',
  'add-chains',
  'add-rules',
  'add-device',
  'add-servers',
  'add-addresses',
  'add-detours',
  'take-chains',
  'remove-detours',
  'remove-addresses',
  'remove-device',
  'remove-servers',
  'remove-rules',
  'remove-chains',
  'remove-entries',
  'remove-sets',
]

/** A set that is made, or that replaces a smaller one with all its entries. */
export interface SetChange {
  readonly set: Ipset
  readonly replaces: { readonly set: Ipset; readonly growth: Growth } | undefined
}

/** Whether a phase contains operations. */
export function isWork(phase: Phase): boolean {
  return sizeOf(phase) > 0
}

/** Gives the number of objects that a phase adds, changes or removes; for rules, the number of operations. */
export function sizeOf(phase: Phase): number {
  switch (phase.kind) {
    case 'add-sets':
      return phase.sets.length
    case 'add-entries':
    case 'remove-entries':
      return phase.lists.reduce((count, { entries }) => count + entries.length, 0)
    case 'add-rules':
    case 'remove-rules':
    case 'add-detours':
    case 'remove-detours':
      return phase.transaction.length
    case 'add-device':
    case 'remove-device':
      return 1
    case 'add-servers':
    case 'remove-servers':
    case 'add-chains':
    case 'take-chains':
    case 'remove-chains':
      return phase.operations.length
    case 'add-addresses':
    case 'remove-addresses':
      return phase.addresses.length
    case 'remove-sets':
      return phase.names.length
  }
}

/** Makes the group of an entry. Several Services may need one entry: its group names all of them. */
export function groupOf(services: readonly string[]): string {
  return services.join(' ')
}

/** Gives the Services of a group; none for an entry that was read from the kernel. */
export function servicesOf(group: string): readonly string[] {
  return group === '' ? [] : group.split(' ')
}
