import { type Ip, parseIp } from '../../src/base/ip.ts'
import {
  type IpvsOperation,
  type RealServer,
  type VirtualServer,
  WHOLE_ADDRESS,
} from '../../src/kernel/ipvs/state.ts'

/** Virtual servers, real servers and operations, briefly. */

export function ip(text: string): Ip {
  const parsed = parseIp(text)
  if (parsed === undefined) throw new Error(`no address: ${text}`)
  return parsed
}

export function virtual(
  text: string,
  port: number,
  more: Partial<Omit<VirtualServer, 'ip' | 'port'>> = {},
): VirtualServer {
  const address = ip(text)
  const netmask = WHOLE_ADDRESS[address.length === 4 ? 'IPv4' : 'IPv6']
  return { protocol: 'TCP', ip: address, port, scheduler: 'rr', flags: 0, timeoutS: 0, netmask, ...more }
}

export function real(text: string, port: number, weight = 1, forwarding = 0): RealServer {
  return { ip: ip(text), port, weight, forwarding }
}

export const newServer = (server: VirtualServer): IpvsOperation => ({
  verb: 'set-server',
  group: 'ns1/web',
  server,
  isNew: true,
})
export const changeServer = (server: VirtualServer): IpvsOperation => ({
  verb: 'set-server',
  group: 'ns1/web',
  server,
  isNew: false,
})
export const deleteServer = (server: VirtualServer): IpvsOperation => ({
  verb: 'delete-server',
  group: 'ns1/web',
  server,
})
export const newDestination = (server: VirtualServer, destination: RealServer): IpvsOperation => ({
  verb: 'set-destination',
  group: 'ns1/web',
  server,
  destination,
  isNew: true,
})
export const changeDestination = (server: VirtualServer, destination: RealServer): IpvsOperation => ({
  verb: 'set-destination',
  group: 'ns1/web',
  server,
  destination,
  isNew: false,
})
export const deleteDestination = (server: VirtualServer, destination: RealServer): IpvsOperation => ({
  verb: 'delete-destination',
  group: 'ns1/web',
  server,
  destination,
})
