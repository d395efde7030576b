import type { Growth } from '../../kernel/ipset/grow.ts'
import type { GroupedEntries } from '../../kernel/ipset/operation.ts'
import type { Ipset } from '../../kernel/ipset/state.ts'
import type { IpvsOperation } from '../../kernel/ipvs/operation.ts'
import type { Transaction } from '../../kernel/nft/operation.ts'
import type { Language } from '../../kernel/xt/language.ts'
import type { ScopeOperations } from '../../kernel/xt/scope-operation.ts'
import type { PlacedAddress } from './state.ts'

/** The operations that one subsystem of the kernel receives at one time. */
export type Phase =
  | { readonly kind: 'add-sets'; readonly sets: readonly SetChange[] }
  | { readonly kind: 'remove-sets'; readonly names: readonly string[] }
  | { readonly kind: 'add-entries' | 'remove-entries'; readonly lists: readonly GroupedEntries[] }
  /** Elements of our own tables; `add-rules` and `remove-rules` also rules, chains and sets. */
  | {
      readonly kind: 'add-rules' | 'remove-rules' | 'add-redirects' | 'remove-redirects'
      readonly transaction: Transaction
    }
  /** kube-proxy's chains in the tables of iptables. */
  | {
      readonly kind: 'add-chains' | 'take-chains' | 'remove-chains'
      readonly operations: ScopeOperations
      /** Gives the name of an ipset whose number a rule contains. */
      readonly nameOfIpset: Language['nameOfIpset']
    }
  | { readonly kind: 'add-device' | 'remove-device'; readonly device: string }
  | { readonly kind: 'add-servers' | 'remove-servers'; readonly operations: readonly IpvsOperation[] }
  | {
      readonly kind: 'add-addresses' | 'remove-addresses'
      readonly device: string
      readonly addresses: readonly PlacedAddress[]
    }

/**
 * The order of the phases of a plan. Additions go from the sets up to the addresses, removals the other way
 * round, so that at no moment there is an address without its server, or a server without its sets.
 */
export const PHASE_ORDER: readonly Phase['kind'][] = [
  'add-sets',
  'add-entries',
  'add-chains',
  'add-rules',
  'add-device',
  // Virtual servers and their new real servers.
  'add-servers',
  'add-addresses',
  // Elements that redirect packets to another address, which must exist before.
  'add-redirects',
  // Replaces chains of kube-proxy's iptables mode with the same names, which serve until everything else exists.
  'take-chains',
  'remove-redirects',
  'remove-addresses',
  // Only if the device has no address of another program.
  'remove-device',
  // Drains or deletes real servers, and deletes virtual servers.
  'remove-servers',
  'remove-rules',
  // Except chains that kube-proxy's iptables mode still uses.
  'remove-chains',
  'remove-entries',
  'remove-sets',
]

/** A set that is made, or that replaces a smaller one with all its entries. */
export interface SetChange {
  readonly set: Ipset
  readonly replaces: { readonly set: Ipset; readonly growth: Growth } | undefined
}

/** Makes the group of an entry. Several Services may need one entry: its group names all of them. */
export function groupOf(services: readonly string[]): string {
  return services.join(' ')
}

/** Gives the Services of a group; none for an entry that was read from the kernel. */
export function servicesOf(group: string): readonly string[] {
  return group === '' ? [] : group.split(' ')
}
