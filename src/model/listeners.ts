import { anyContains, type Cidr } from '../base/cidr.ts'
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

/** Keys of what isTaken asks about; undefined when there are none. */
export function takenKeys(found: ServiceListeners | undefined): ReadonlySet<string> | undefined {
  return found && new Set(found.taken.map(takenKey))
}

/** Whether a process of this node keeps the port from the Service: not at the addresses that the operator allows. */
export function isTaken(
  keys: ReadonlySet<string> | undefined,
  port: TakenPort,
  allowed: readonly Cidr[],
): boolean {
  return keys?.has(takenKey(port)) === true && !anyContains(allowed, port.ip)
}

/** Key of a port in a set. */
export function takenKey({ ip, protocol, port }: TakenPort): string {
  return protocol + u16be(port) + ip
}
