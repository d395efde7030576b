import type { Ip } from '../base/ip.ts'
import { u16be } from '../base/octets.ts'
import type { Protocol } from './service.ts'

/** What processes of this node have of a Service's external addresses. */
export interface ServiceListeners {
  /** Ports at addresses of this node at which a process of it listens. */
  readonly taken: readonly TakenPort[]
}

export interface TakenPort {
  readonly ip: Ip
  readonly protocol: Protocol
  readonly port: number
}

/** Key of a port in a set. */
export function takenKey({ ip, protocol, port }: TakenPort): string {
  return protocol + u16be(port) + ip
}
