import type { RealServer, VirtualAddress, VirtualServer } from './state.ts'

/**
 * One message to IPVS. Each stands for itself: the kernel carries out those that it can (kernel.md 5). They are
 * idempotent: what is there already is changed to what is asked for, and what is gone already is not missed.
 */
export type IpvsOperation = { readonly group: string } & (
  | {
      readonly verb: 'set-server'
      readonly server: VirtualServer /** Not there yet, as far as is known. */
      readonly isNew: boolean
    }
  | { readonly verb: 'delete-server'; readonly server: VirtualAddress }
  | {
      readonly verb: 'set-destination'
      readonly server: VirtualAddress
      readonly destination: RealServer
      readonly isNew: boolean
    }
  | { readonly verb: 'delete-destination'; readonly server: VirtualAddress; readonly destination: RealServer }
)
