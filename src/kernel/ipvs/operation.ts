import type { RealServer, VirtualAddress, VirtualServer } from './state.ts'

/**
 * One message to IPVS. The kernel carries out each by itself (kernel.md 5). Operations are idempotent: one that sets
 * an object changes it if it exists, and one that deletes an object succeeds if it is gone.
 */
export type IpvsOperation = { readonly group: string } & (
  | {
      readonly verb: 'set-server'
      readonly server: VirtualServer
      /** Whether the server is expected to be missing in the kernel. */
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
