import type { Ip } from './ip.ts'

/** A prefix: `ip` has no bits set beyond the first `bits`. */
export interface Cidr {
  readonly ip: Ip
  readonly bits: number
}
