import { expect, it } from 'vitest'
import {
  backends,
  clusterIp,
  EXTERNAL,
  ip4,
  nodePort,
  service,
  table,
  vip,
} from '../../../support/frontends.ts'
import { everything, members, render, servers } from './rendered.ts'

const IP = ip4(10, 96, 0, 1)
const IP_2 = ip4(10, 96, 0, 2)
const NODE_IP = ip4(192, 168, 0, 2)
const ON_NODE = { localIps: [NODE_IP, ip4(192, 168, 1, 2)] }
const LISTS = { cluster: backends(2), local: backends(1, { local: true }) }

it('keeps off places where somebody else has a virtual server, whoever else wants these', () => {
  const occupied = { servers: new Set(['TCP 192.168.0.2:30001', 'TCP 10.96.0.1:80']), version: 1 }
  const ports = { frontends: [clusterIp(IP, 80), nodePort(30_001, EXTERNAL)], ...LISTS }
  const balanced = { frontends: [clusterIp(IP_2, 80), vip(NODE_IP, 30_001, EXTERNAL)], ...LISTS }
  const both = [service('ns/a', [ports]), service('ns/b', [balanced])]
  const before = table(both, ON_NODE)
  const state = render(before, undefined, { options: { occupied } })
  expect(servers(state).map(line => line.split(' ->')[0])).toEqual([
    'TCP 10.96.0.1:80 rr',
    'TCP 10.96.0.2:80 rr',
  ])
  expect([...state.refusals.keys()]).toEqual(['ns/a', 'ns/b'])
  expect(members(state, 'KUBE-NODE-PORT-TCP')).toEqual([])
  const after = { ...before, services: before.services.with([['ns/b', undefined]]) }
  const next = render(after, state, { options: { occupied } })
  expect(everything(next)).toEqual(everything(render(after, undefined, { options: { occupied } })))
})
