import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import { assert } from '../../../../src/base/errors.ts'
import {
  anyContains,
  familyOf,
  formatIp,
  formatIpPort,
  type Ip,
  isLoopback,
} from '../../../../src/base/ip.ts'
import { createTracer, type TracePacket, type Tracer } from '../../../../src/kernel/evaluate/trace.ts'
import type { Frontend, FrontendTable, Route } from '../../../../src/model/frontend.ts'
import { createIptablesTracer } from '../../../../src/modes/iptables/mode.ts'
import { PROTOCOL_NUMBER } from '../../../support/lab/probe.ts'
import { change, computeIn, IPTABLES, IPTABLES_OPTIMIZED, ip, NFTABLES } from '../../../support/pipeline.ts'
import { IS_QUICK, runs } from '../../../support/runs.ts'
import { changes, configs, LOCAL_IPS, NODE, packets, SERVICE_CIDR } from './clusters.ts'

/*
 * The same packets through the rules of this mode and of the nftables mode, while Services come, change and go: they end
 * alike but for what is listed here (and, with packets to show it, in test/scenarios/iptables-differences.yaml).
 */

const AROUND = { localIps: new Set(LOCAL_IPS.map(ip)), random: () => 0 }
const NODE_IP = ip('192.168.0.2')

/** Where a packet may end, with the share of all connections, sorted. */
function fates(tracer: Tracer, packet: TracePacket): string {
  return tracer
    .ways(packet, AROUND)
    .map(({ trace: { verdict, destination, masquerade }, probability }) => {
      if (verdict !== 'dnat') return verdict
      const to = formatIpPort(destination.ip, destination.port)
      return `${to}${masquerade ? ' masqueraded' : ''} ${probability.toFixed(6)}`
    })
    .sort()
    .join(', ')
}

interface Meeting {
  readonly packet: TracePacket
  readonly table: FrontendTable
  /** Where Services catch the packet at its very address. */
  readonly at: readonly Frontend[]
  /** The NodePort of that number, whatever the address. */
  readonly nodePort: { readonly route: Route; readonly hasLocal: boolean } | undefined
  readonly toUs: boolean
}

function meetingOf(packet: TracePacket, table: FrontendTable): Meeting {
  const family = familyOf(packet.destination)
  const all = [...table.services.values()]
    .flatMap(service => service.ports)
    .filter(port => port.family === family && PROTOCOL_NUMBER[port.protocol] === packet.protocol)
    .flatMap(port => port.frontends.map(frontend => ({ frontend, hasLocal: port.local.length > 0 })))
    .filter(({ frontend }) => frontend.port === packet.destinationPort)
  const nodePort = all.find(({ frontend }) => frontend.ip === undefined)
  return {
    packet,
    table,
    at: all.flatMap(({ frontend }) => (frontend.ip === packet.destination ? [frontend] : [])),
    nodePort: nodePort && { route: nodePort.frontend.route, hasLocal: nodePort.hasLocal },
    toUs: isLoopback(packet.destination) || AROUND.localIps.has(packet.destination),
  }
}

/** What kube-proxy's iptables mode does otherwise than its nftables mode. */
interface Difference {
  readonly why:
    | 'another port of a ClusterIP is routed on'
    | 'ServiceCIDRs mean nothing'
    | 'the node is not rejected on its way out'
    | 'there is nothing to guard'
    | 'NodePorts answer at 127.0.0.1'
    | 'NodePorts without endpoints are closed at every address of the node'
    | 'a NodePort serves where an external address of the node has no endpoints'
  readonly fate: string
}

/** Undefined for packets that have the same fate in both modes. `elsewhere` tells that of another packet in the nftables mode. */
function difference(meeting: Meeting, elsewhere: (packet: TracePacket) => string): Difference | undefined {
  const { packet, table, at, toUs } = meeting
  const [frontend] = at
  if (frontend === undefined) return toUs ? atTheNode(meeting, elsewhere) : nobodys(packet, table)
  if (frontend.route.kind !== 'reject' || frontend.kind === 'ClusterIP') return undefined
  const open = toUs ? openNodePort(meeting) : undefined
  if (open !== undefined)
    return {
      why: 'a NodePort serves where an external address of the node has no endpoints',
      fate: elsewhere({ ...packet, destination: open }),
    }
  if (packet.origin === 'process' && !toUs)
    return { why: 'the node is not rejected on its way out', fate: 'accept' }
  return frontend.sourceRanges === undefined
    ? undefined
    : { why: 'there is nothing to guard', fate: 'reject' }
}

/** nat translates before filter rejects: where the NodePort of that number serves, an address at which nothing else does. */
function openNodePort({ packet, table, nodePort }: Meeting): Ip | undefined {
  if (nodePort === undefined || nodePort.route.kind === 'reject') return undefined
  const family = familyOf(packet.destination)
  const selected = table.nodePorts[family]
  const isSelected = (one: Ip) => selected.kind === 'all' || selected.ips.includes(one)
  if (!isSelected(packet.destination)) return undefined
  return [...AROUND.localIps]
    .filter(one => familyOf(one) === family && !isLoopback(one) && isSelected(one))
    .find(one => meetingOf({ ...packet, destination: one }, table).at.length === 0)
}

function nobodys(
  { destination }: TracePacket,
  { services, serviceCidrs }: FrontendTable,
): Difference | undefined {
  const isClusterIp = [...services.values()].some(({ clusterIps }) => clusterIps.includes(destination))
  if (isClusterIp) return { why: 'another port of a ClusterIP is routed on', fate: 'accept' }
  return anyContains(serviceCidrs, destination)
    ? { why: 'ServiceCIDRs mean nothing', fate: 'accept' }
    : undefined
}

function atTheNode(
  { packet, table, nodePort }: Meeting,
  elsewhere: (packet: TracePacket) => string,
): Difference | undefined {
  if (nodePort === undefined) return undefined
  const { destination } = packet
  const selected = table.nodePorts[familyOf(destination)]
  if (selected.kind === 'all' && destination.length === 4 && isLoopback(destination))
    return {
      why: 'NodePorts answer at 127.0.0.1',
      fate: elsewhere({ ...packet, source: NODE_IP, destination: NODE_IP }),
    }
  if (selected.kind === 'all' ? !isLoopback(destination) : selected.ips.includes(destination))
    return undefined
  const { route, hasLocal } = nodePort
  const why = 'NodePorts without endpoints are closed at every address of the node'
  if (route.kind === 'reject') return { why, fate: 'reject' }
  return route.kind === 'external-local' && !hasLocal ? { why, fate: 'drop' } : undefined
}

interface Sent {
  readonly meeting: Meeting
  readonly ours: Tracer
  readonly theirs: Tracer
}

/** Where packets have another fate, it is a certain one. */
function expectAlike({ meeting, ours, theirs }: Sent): void {
  const { packet } = meeting
  const elsewhere = (its: TracePacket) => fates(theirs, its)
  const its = difference(meeting, elsewhere)
  const from = `${packet.origin} ${formatIp(packet.source)}`
  const about = `${from} to ${formatIpPort(packet.destination, packet.destinationPort)}: ${its?.why}`
  expect(fates(ours, packet), about).toBe(its === undefined ? elsewhere(packet) : its.fate)
}

const steps = fc.array(fc.tuple(changes, fc.array(packets, { maxLength: 40, size: 'max' })), {
  minLength: 4,
  maxLength: 16,
  size: 'max',
})
const AT_FIRST = { objects: [NODE, SERVICE_CIDR] }

describe('packets in this mode', () => {
  it.skipIf(IS_QUICK)('end as in the nftables mode, step by step, but for what is listed', () => {
    const property = fc.property(configs, fc.boolean(), steps, (config, optimize, walk) => {
      let here = change(computeIn(optimize ? IPTABLES_OPTIMIZED : IPTABLES, config, LOCAL_IPS), AT_FIRST)
      let there = change(computeIn(NFTABLES, config, LOCAL_IPS), AT_FIRST)
      for (const [step, sent] of walk) {
        here = change(here, step)
        there = change(there, step)
        assert(here.state.kind === 'rendered', 'nothing was rendered')
        const ours = createIptablesTracer(here.state)
        const theirs = createTracer(there.state.ruleset)
        for (const packet of sent) {
          expectAlike({ meeting: meetingOf(packet, there.resolved.table), ours, theirs })
        }
      }
    })
    fc.assert(property, { numRuns: runs(30) })
  })
})
