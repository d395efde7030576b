import { expect, it } from 'vitest'
import type { Ip } from '../../../../src/base/ip.ts'
import type { TracePacket } from '../../../../src/proof/evaluate/trace.ts'
import {
  backends,
  clusterIp,
  EXTERNAL,
  EXTERNAL_LOCAL,
  ip4,
  service,
  table,
  vip,
} from '../../../support/frontends.ts'
import { createIpvsTracer } from '../../../support/tracers.ts'
import { lines, tableIn } from '../nftables/inspect.ts'
import { render } from './rendered.ts'

const IP = ip4(10, 96, 0, 1)
const VIP = ip4(203, 0, 113, 1)
const VIP_2 = ip4(203, 0, 113, 2)
const LISTS = { cluster: backends(2), local: backends(1, { local: true }) }

it('lets load balancers meet the health check node port at the balanced address, and nobody at others', () => {
  const frontends = [
    clusterIp(IP, 80),
    vip(VIP, 80, EXTERNAL_LOCAL),
    { ...vip(VIP_2, 80, EXTERNAL_LOCAL), kind: 'ExternalIP' as const },
  ]
  const its = service('ns/a', [{ frontends, ...LISTS }])
  const healthCheck = { port: 31_000, local: { IPv4: 1 } }
  const accepted = (localIps: readonly Ip[], more = {}): string[] =>
    lines(tableIn(render(table([{ ...its, healthCheck, ...more }], { localIps }))), 'health-checks')
  expect(accepted([])).toEqual(['203.0.113.1 . tcp . 31000'])
  expect(accepted([VIP])).toEqual([])
  expect(accepted([], { healthCheck: { ...healthCheck, port: 80 } })).toEqual([])
})

it('F145: a health check node port comes behind what another Service has there', () => {
  const others = service('ns/b', [{ frontends: [vip(VIP, 31_000, EXTERNAL)], ...LISTS }])
  const its = service('ns/a', [{ frontends: [vip(VIP, 80, EXTERNAL_LOCAL)], ...LISTS }])
  const state = render(table([{ ...its, healthCheck: { port: 31_000, local: { IPv4: 1 } } }, others]))
  const packet: TracePacket = {
    origin: 'interface',
    interfaceName: 'ext0',
    protocol: 6,
    source: ip4(198, 51, 100, 1),
    sourcePort: 40_000,
    destination: VIP,
    destinationPort: 31_000,
  }
  const { verdict, masquerade } = createIpvsTracer(state).trace(packet, {
    localIps: new Set(),
    random: () => 0,
  })
  expect({ verdict, masquerade }).toEqual({ verdict: 'dnat', masquerade: true })
})
