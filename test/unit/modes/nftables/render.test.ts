import { describe, expect, it } from 'vitest'
import type { Route } from '../../../../src/model/frontend.ts'
import {
  backends,
  CLUSTER,
  clusterIp,
  DROP,
  EXTERNAL,
  EXTERNAL_LOCAL,
  ip4,
  ip6,
  LOCAL,
  nodePort,
  REJECT,
  service,
  table,
  vip,
} from '../../../support/frontends.ts'
import { complaints, differences, elementsOf, render, routes, rulesText, tableIn } from './inspect.ts'

const IP = ip4(10, 96, 0, 1)
const VIP = ip4(203, 0, 113, 1)
const RANGES = [{ ip: ip4(192, 168, 0, 0), bits: 16 }]

describe('a Service of type ClusterIP', () => {
  const state = render(
    table([service('ns/web', [{ name: 'http', frontends: [clusterIp(IP, 80)], cluster: backends(3) }])]),
  )
  const ip = tableIn(state)

  it('has its name beside its frontend', () => {
    const named = elementsOf(ip).filter(({ comment }) => comment !== '')
    expect(named.map(({ set, comment }) => `${set} ${comment}`)).toEqual(['frontends ns/web:http'])
  })

  it('gets the chain of one endpoint more in advance, and the fallback', () => {
    expect([...ip.chains.keys()].filter(name => name.includes('mod'))).toEqual(['mod-3', 'mod-1', 'mod-4'])
  })
})

describe('the route of a frontend', () => {
  const cases: [string, Route, { n: number; m: number; t?: number; ranges?: boolean }, string][] = [
    ['ClusterIP', CLUSTER, { n: 3, m: 0 }, 'mod-3'],
    ['ClusterIP of a large Service', CLUSTER, { n: 17, m: 0 }, 'mod-18'],
    ['ClusterIP with affinity', CLUSTER, { n: 3, m: 0, t: 60 }, 'aff-3-60'],
    ['ClusterIP, internal policy Local', LOCAL, { n: 0, m: 2 }, 'lmod-2'],
    ['ClusterIP, internal policy Local, affinity', LOCAL, { n: 0, m: 2, t: 60 }, 'laff-2-60'],
    ['no endpoint anywhere', REJECT, { n: 0, m: 0 }, 'refuse'],
    ['no endpoint here', DROP, { n: 0, m: 0 }, 'no-local-endpoints'],
    ['external', EXTERNAL, { n: 3, m: 0 }, 'ext-3'],
    ['external with affinity', EXTERNAL, { n: 3, m: 0, t: 60 }, 'ext-3-60'],
    ['external with ranges', EXTERNAL, { n: 3, m: 0, ranges: true }, 'fw-ext-3'],
    ['external with ranges and affinity', EXTERNAL, { n: 3, m: 0, t: 5, ranges: true }, 'fw-ext-3-5'],
    ['external without endpoints, with ranges', REJECT, { n: 0, m: 0, ranges: true }, 'fw-refuse'],
    ['external Local', EXTERNAL_LOCAL, { n: 3, m: 1 }, 'loc-3-1'],
    ['external Local, none here', EXTERNAL_LOCAL, { n: 3, m: 0 }, 'loc-3-0'],
    [
      'external Local with ranges and affinity',
      EXTERNAL_LOCAL,
      { n: 3, m: 1, t: 9, ranges: true },
      'fw-loc-3-1-9',
    ],
    ['a list that is empty after all', CLUSTER, { n: 0, m: 0 }, 'refuse'],
    ['an external list that is empty after all', EXTERNAL, { n: 0, m: 0, ranges: true }, 'fw-refuse'],
    ['a local list that is empty after all', LOCAL, { n: 0, m: 0 }, 'no-local-endpoints'],
  ]

  it.each(cases)('%s', (_, route, { n, m, t = 0, ranges = false }, chain) => {
    const port = {
      affinityTimeoutS: t,
      frontends: [vip(VIP, 80, route, ranges ? RANGES : undefined)],
      cluster: backends(n),
      local: backends(m, { local: true }),
    }
    const state = render(table([service('ns/web', [port])]))
    expect(routes(tableIn(state))).toEqual([`203.0.113.1 . tcp . 80 -> ${chain}`])
    expect(complaints(state)).toEqual([])
  })
})

describe('a Service with everything', () => {
  const port = {
    name: 'https',
    frontends: [
      clusterIp(IP, 443),
      nodePort(30443, EXTERNAL_LOCAL),
      vip(VIP, 443, EXTERNAL_LOCAL, [{ ip: ip4(10, 0, 0, 0), bits: 8 }, ...RANGES]),
    ],
    cluster: backends(2),
    local: backends(1, { local: true }),
  }

  it('has a rule for each length of its ranges, the longest first', () => {
    const ip = tableIn(render(table([service('ns/web', [port])])))
    const lengths = rulesText(ip, 'firewall-check').map(line => /saddr & (\S+) @ranges/.exec(line)?.[1])
    expect(lengths).toEqual(['255.255.0.0', '255.0.0.0', undefined])
  })
})

describe('the fixed chains', () => {
  const cidrs = [{ ip: ip4(10, 96, 0, 0), bits: 12 }]
  const podCidrs = [
    { ip: ip4(10, 20, 0, 0), bits: 16 },
    { ip: ip6(0x20, 0), bits: 64 },
  ]
  const inputs = { serviceCidrs: cidrs, node: { ips: [], podCidrs } }

  it('serve IPv6 NodePorts on every address but ::1', () => {
    const rules = rulesText(tableIn(render(table([], inputs)), 'ip6'), 'services')
    expect(rules[0]).toContain('ip6 saddr != fd00:20::/64')
    expect(rules[2]).toMatch(/^fib daddr type local ip6 daddr != ::1 /)
  })

  it('are made anew when what they follow from changes, and only then', () => {
    const before = render(table([], inputs))
    expect(tableIn(render(table([], inputs), before)).chains).toBe(tableIn(before).chains)
    const after = render(table([], { ...inputs, serviceCidrs: [] }), before)
    expect(rulesText(tableIn(after), 'services')).toHaveLength(4)
    expect(tableIn(after, 'ip6')).toBe(tableIn(before, 'ip6'))
    expect(differences(before, after).length).toBeGreaterThan(0)
  })

  it('follow a pod range that appears later, in chains made on demand as well', () => {
    const one = service('ns/web', [
      {
        frontends: [nodePort(30080, EXTERNAL_LOCAL)],
        cluster: backends(1),
        local: backends(1, { local: true }),
      },
    ])
    const before = render(table([one]))
    const after = render(table([one], inputs), before)
    expect(rulesText(tableIn(before), 'loc-1-1')).toHaveLength(2)
    expect(rulesText(tableIn(after), 'loc-1-1')).toHaveLength(3)
  })
})
