import type { Growth } from '../../kernel/ipset/grow.ts'
import type { GroupedEntries } from '../../kernel/ipset/operation.ts'
import type { Ipset } from '../../kernel/ipset/state.ts'
import type { IpvsOperation } from '../../kernel/ipvs/operation.ts'
import type { Transaction } from '../../kernel/nft/operation.ts'
import type { Language } from '../../kernel/xt/language.ts'
import type { ScopeOperations } from '../../kernel/xt/scope-operation.ts'
import type { PlacedAddress } from './state.ts'

/**
 * What is sent to one of the kernel's subsystems at one time. The phases of a plan come in the order of PHASE_ORDER, so
 * that at no instant there is an address without its server, or a server without its sets: what comes goes in from the
 * sets up to the addresses, and what goes leaves the other way round.
 */
export type Phase =
  | { readonly kind: 'add-sets'; readonly sets: readonly SetChange[] }
  | { readonly kind: 'add-entries'; readonly lists: readonly GroupedEntries[] }
  /**
   * kube-proxy's chains in the tables of iptables; `take-chains` where chains of its iptables mode have their names, and
   * serve until everything else is there.
   */
  | ({ readonly kind: 'add-chains' | 'take-chains' } & ChainWork)
  /** Rules, and the elements that come, but for detours. */
  | { readonly kind: 'add-rules'; readonly transaction: Transaction }
  | { readonly kind: 'add-device'; readonly device: string }
  /** Virtual servers and the real servers that they get. */
  | { readonly kind: 'add-servers'; readonly operations: readonly IpvsOperation[] }
  | { readonly kind: 'add-addresses'; readonly device: string; readonly addresses: readonly PlacedAddress[] }
  /** Elements that send packets on to another address, which has to be there by then. */
  | { readonly kind: 'add-detours'; readonly transaction: Transaction }
  | { readonly kind: 'remove-detours'; readonly transaction: Transaction }
  | {
      readonly kind: 'remove-addresses'
      readonly device: string
      readonly addresses: readonly PlacedAddress[]
    }
  /** Only if nobody else's address is on it. */
  | { readonly kind: 'remove-device'; readonly device: string }
  /** What drains, and what is deleted. */
  | { readonly kind: 'remove-servers'; readonly operations: readonly IpvsOperation[] }
  /** The elements that go, and what they held. */
  | { readonly kind: 'remove-rules'; readonly transaction: Transaction }
  /** What these chains were, but what its iptables mode has as well and still uses. */
  | ({ readonly kind: 'remove-chains' } & ChainWork)
  | { readonly kind: 'remove-entries'; readonly lists: readonly GroupedEntries[] }
  | { readonly kind: 'remove-sets'; readonly names: readonly string[] }

interface ChainWork {
  readonly operations: ScopeOperations
  /** Of an ipset that a rule names by its number. */
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

/** A set that is made, or that takes the place of a smaller one with all that is in it. */
export interface SetChange {
  readonly set: Ipset
  readonly replaces: { readonly set: Ipset; readonly growth: Growth } | undefined
}

/** Whether anything is in it. */
export function isWork(phase: Phase): boolean {
  return sizeOf(phase) > 0
}

/** Objects that it adds, changes or removes; operations, of rules. */
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

/** Several Services may need one entry: its group names all of them. */
export function groupOf(services: readonly string[]): string {
  return services.join(' ')
}

/** None for what was read from the kernel. */
export function servicesOf(group: string): readonly string[] {
  return group === '' ? [] : group.split(' ')
}
