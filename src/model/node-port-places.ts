import { type Family, familyOf, type Ip } from '../base/ip.ts'
import { u16be } from '../base/octets.ts'
import type { NodeContext } from './node-context.ts'
import type { Protocol, Service } from './service.ts'

/** Key of a NodePort in Claims.places; longer than that of any address and port, which may have any octets. */
export function nodePortPlace(family: Family, protocol: Protocol, nodePort: number): string {
  return `NodePort ${protocol}${family}${u16be(nodePort)}`
}

/** A health check node port is a TCP port of the node as a NodePort is: one Service has it. */
export function healthCheckPlaces({ clusterIps, healthCheckNodePort }: Service): readonly string[] {
  if (healthCheckNodePort === 0) return NONE
  return clusterIps.map(ip => nodePortPlace(familyOf(ip), 'TCP', healthCheckNodePort))
}

const NONE: readonly string[] = []

/**
 * The places that a Service has besides its NodePorts and addresses: its health check, and where NodePorts meet external
 * addresses of the Node. Owners of the latter are those of the NodePorts, which changes affect.
 */
export function placesOnNode(here: NodeContext, service: Service, held: readonly Ip[]): readonly string[] {
  const { clusterIps, ports } = service
  const checks = healthCheckPlaces(service)
  const own = held.filter(ip => here.nodeIps.has(ip))
  const meetings = checks.map(meetingOf)
  for (const { protocol, port, nodePort } of ports) {
    for (const ip of own) meetings.push(meetingOf(nodePortPlace(familyOf(ip), protocol, port)))
    if (nodePort === 0) continue
    for (const ip of clusterIps) meetings.push(meetingOf(nodePortPlace(familyOf(ip), protocol, nodePort)))
  }
  return [...checks, ...meetings]
}

function meetingOf(place: string): string {
  return `at ${place}`
}
