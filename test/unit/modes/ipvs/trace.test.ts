import { describe, expect, it } from 'vitest'
import { PersistentMap } from '../../../../src/base/collections.ts'
import type { Ip } from '../../../../src/base/ip.ts'
import { IPPROTO_ICMP, IPPROTO_TCP, IPPROTO_UDP } from '../../../../src/kernel/nft/constants.ts'
import type { TracePacket } from '../../../../src/proof/evaluate/trace.ts'
import {
  backends,
  clusterIp,
  EXTERNAL_LOCAL,
  ip4,
  LOCAL,
  service,
  table,
  vip,
} from '../../../support/frontends.ts'
import { createIpvsTracer } from '../../../support/tracers.ts'
import { render } from './rendered.ts'

const IP = ip4(10, 96, 0, 1)
const VIP = ip4(203, 0, 113, 1)
const POD = ip4(10, 20, 9, 9)
const NODE_IP = ip4(192, 168, 0, 2)
const OUTSIDE = ip4(198, 51, 100, 7)

const options = {
  detector: { IPv4: { kind: 'cidr', cidr: { ip: ip4(10, 20, 0, 0), bits: 16 } }, IPv6: undefined },
} as const

function packet(source: Ip, destination: Ip, more: Partial<TracePacket> = {}): TracePacket {
  const origin = source === NODE_IP ? 'process' : 'interface'
  return {
    origin,
    protocol: IPPROTO_TCP,
    source,
    sourcePort: 40_000,
    destination,
    destinationPort: 80,
    ...more,
  }
}

const AROUND = { localIps: new Set([NODE_IP]), random: () => 0 }

const local = render(
  table(
    [
      service('ns/a', [
        {
          frontends: [clusterIp(IP, 80, LOCAL), vip(VIP, 80, EXTERNAL_LOCAL)],
          cluster: backends(2),
          local: backends(1, { local: true }),
        },
      ]),
    ],
    { localIps: [NODE_IP] },
  ),
  undefined,
  { options },
)

describe('a packet in IPVS mode', () => {
  it('reaches nothing of the node at a service address (F107), by any protocol', () => {
    for (const protocol of [IPPROTO_TCP, IPPROTO_UDP, IPPROTO_ICMP])
      for (const source of [OUTSIDE, POD, NODE_IP])
        expect(
          createIpvsTracer(local).trace(packet(source, IP, { protocol, destinationPort: 22 }), AROUND)
            .verdict,
        ).toBe('reject')
  })
})

describe('a client that IPVS remembers', () => {
  const affine = render(
    table([
      service('ns/a', [{ affinityTimeoutS: 60, frontends: [clusterIp(IP, 80)], cluster: backends(3) }]),
    ]),
  )
  const first = createIpvsTracer(affine).trace(packet(POD, IP), { ...AROUND, random: () => 2 })

  it('is forgotten with a real server that drains', () => {
    const key = 'TCP 10.96.0.1:80'
    const placed = affine.servers.get(key)
    if (placed === undefined) throw new Error('no server')
    const destinations = new Map(placed.destinations)
    for (const [name, to] of destinations)
      if (name.startsWith('10.21.0.3')) destinations.set(name, { ...to, weight: 0 })
    const state = { ...affine, servers: PersistentMap.from([[key, { ...placed, destinations }]]) }
    const next = createIpvsTracer(state).trace(packet(POD, IP), { ...AROUND, dynamic: first.dynamic })
    expect(next.destination.ip).toBe(ip4(10, 21, 0, 1))
    const back = createIpvsTracer(affine).trace(packet(POD, IP), {
      ...AROUND,
      dynamic: next.dynamic,
      random: () => 2,
    })
    expect(back.destination.ip).toBe(ip4(10, 21, 0, 1))
  })
})

describe('a set', () => {
  it('of another family has no packet', () => {
    const unknownPort = packet(OUTSIDE, IP, { destinationPort: 22 })
    expect(createIpvsTracer(local).trace(unknownPort, AROUND).verdict).toBe('reject')
    const sets = new Map([...local.sets].map(([name, set]) => [name, { ...set, family: 'IPv6' }] as const))
    expect(createIpvsTracer({ ...local, sets }).trace(unknownPort, AROUND).verdict).toBe('accept')
  })
})
