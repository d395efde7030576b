import { describe, expect, it } from 'vitest'
import { formatIp } from '../../../src/base/ip.ts'
import type { FrontendTable, WholeAddresses } from '../../../src/model/frontend.ts'
import { parseObject } from '../../../src/model/parse.ts'
import {
  DRAINING,
  endpoint,
  type Fields,
  node,
  refusalLines,
  service,
  serviceCidr,
  shown,
  slice,
  tableOf,
  UNREADY,
} from './objects.ts'

/* What test/scenarios/named-headless.yaml does not say. */

const MINE = { serviceProxyName: 'mine' }
const LABELS = { 'service.kubernetes.io/service-proxy-name': 'mine' }

function headless(name: string, spec: Fields, metadata: Fields = {}): Fields {
  return service(name, { clusterIP: 'None', ...spec }, { metadata: { labels: LABELS, ...metadata } })
}

const BOTH = { externalIPs: ['192.0.2.1', '2001:db8::1'], ipFamilies: ['IPv4', 'IPv6'] }
const PODS = [
  slice('web-4', 'web', [endpoint('10.1.0.1', { nodeName: 'here' }), endpoint('10.1.0.2')]),
  slice('web-6', 'web', [endpoint('fd00:1::1')], { addressType: 'IPv6' }),
]

function wholesOf(table: FrontendTable): readonly WholeAddresses[] | undefined {
  return table.services.get('ns/web')?.wholes
}

/** `192.0.2.1 external-cluster -> 10.1.0.1 local, 10.1.0.2` */
function wholeLines(table: FrontendTable): readonly string[] | undefined {
  return wholesOf(table)?.map(({ ips, route, cluster }) => {
    const endpoints = cluster.map(({ ip, local }) => `${formatIp(ip)}${local ? ' local' : ''}`)
    return `${ips.map(formatIp).join()} ${route.kind} -> ${endpoints.join(', ')}`
  })
}

describe('a headless Service of a named proxy', () => {
  it('has no frontends without a label', () => {
    const plain = service('web', { clusterIP: 'None', ...BOTH })
    expect(tableOf([node(), plain, ...PODS], MINE).services.size).toBe(0)
  })

  it('has no NodePort, even where an object lists one', () => {
    const ports = [{ port: 80, nodePort: 30080 }]
    const table = tableOf([node(), headless('web', { ...BOTH, ports }), ...PODS], MINE)
    expect(shown(table, 'ns/web')).toMatchObject({
      'ns/web:/TCP/IPv4': { frontends: ['192.0.2.1:80 external-cluster'] },
      'ns/web:/TCP/IPv6': { frontends: ['[2001:db8::1]:80 external-cluster'] },
    })
  })

  it('refuses addresses outside its families, and those of the node', () => {
    const spec = { externalIPs: ['192.0.2.1', '2001:db8::1', '192.168.1.7'], ipFamilies: ['IPv4'] }
    const table = tableOf([node(), headless('web', spec), ...PODS], MINE)
    expect(Object.keys(shown(table, 'ns/web'))).toEqual(['ns/web:/TCP/IPv4'])
    expect(refusalLines(table.services.get('ns/web'))).toEqual([
      expect.stringContaining('an IPv6 address of a Service that is not in that family (spec.ipFamilies)'),
      expect.stringContaining('it belongs to this node'),
    ])
  })

  it('does not take the ClusterIP of another proxy', () => {
    const other = service('other', { clusterIP: '192.0.2.1' })
    const table = tableOf([node(), other, headless('web', BOTH), ...PODS], MINE)
    expect(Object.keys(shown(table, 'ns/web'))).toEqual(['ns/web:/TCP/IPv6'])
  })
})

describe('a headless Service without ports', () => {
  const NO_PORTS = { ports: undefined, ...BOTH }
  const bare = { ports: [] }
  const PORTLESS = [
    slice('web-4', 'web', [endpoint('10.1.0.1', { nodeName: 'here' }), endpoint('10.1.0.2')], bare),
    slice('web-5', 'web', [endpoint('10.1.0.2'), endpoint('10.1.0.0', { conditions: UNREADY })], bare),
    slice('web-6', 'web', [endpoint('fd00:1::1', { nodeName: 'here' })], { ...bare, addressType: 'IPv6' }),
  ]

  it.each([
    ['none at all', undefined],
    ['null', null],
    ['an empty list', []],
  ])('is reached at its addresses as a whole: %s', (_, ports) => {
    const table = tableOf([node(), headless('web', { ...BOTH, ports }), ...PORTLESS], MINE)
    expect(wholeLines(table)).toEqual([
      '192.0.2.1 external-cluster -> 10.1.0.1 local, 10.1.0.2',
      '2001:db8::1 external-cluster -> fd00:1::1 local',
    ])
    expect(table.services.get('ns/web')).toMatchObject({
      ports: [],
      wholes: [{ local: [] }, { local: [] }],
      refusals: [],
    })
  })

  it('is not what one is whose ports are all refused', () => {
    const table = tableOf([node(), headless('web', { ...BOTH, ports: [{ port: 0 }] }), ...PORTLESS], MINE)
    expect(table.services.get('ns/web')).toMatchObject({ ports: [] })
    expect(table.services.get('ns/web')?.service).toBe('ns/web')
    expect(table.services.get('ns/web')?.wholes).toBeUndefined()
  })

  it('keeps policy Local and draining endpoints, and reports when there is none', () => {
    const local = { ...NO_PORTS, externalTrafficPolicy: 'Local' }
    const draining = slice('web-4', 'web', [endpoint('10.1.0.9', { conditions: DRAINING })], bare)
    const table = tableOf([node(), headless('web', local), draining], MINE)
    expect(wholeLines(table)).toEqual(['192.0.2.1 external-local -> 10.1.0.9', '2001:db8::1 reject -> '])
  })

  it('yields an address to an older one that has it as a whole, and none to one that has a port of it', () => {
    const at = (day: number) => ({ creationTimestamp: `2026-01-0${day}T00:00:00Z` })
    const ported = headless('ported', { externalIPs: ['192.0.2.1'] }, at(1))
    const older = headless('older', { externalIPs: ['2001:db8::1'], ports: [] }, at(1))
    const table = tableOf([node(), ported, older, headless('web', NO_PORTS, at(2)), ...PORTLESS], MINE)
    expect(wholesOf(table)?.flatMap(({ ips }) => ips.map(formatIp))).toEqual(['192.0.2.1'])
    expect(refusalLines(table.services.get('ns/web'))).toEqual([
      expect.stringContaining('already claimed as a whole by Service ns/older, which comes first'),
    ])
    expect(table.services.get('ns/ported')?.ports).toHaveLength(1)
  })
})

describe('slices of headless Services', () => {
  const labels = { 'kubernetes.io/service-name': 'web', 'service.kubernetes.io/headless': '' }
  const object = slice('web-1', 'web', [endpoint('10.1.0.1')], { metadata: { labels } })

  it('are kept for a named proxy alone', () => {
    expect(parseObject(object)).toMatchObject({ value: undefined })
    expect(parseObject(object, undefined, { headlessSlices: true })).toMatchObject({
      kind: 'EndpointSlice',
      key: 'ns/web-1',
      value: { service: 'ns/web' },
    })
  })
})

describe('addresses that no Service has', () => {
  it('are ignored by a named proxy: they belong to another one, or to none', () => {
    const range = serviceCidr('k', ['10.96.0.0/16'])
    expect(tableOf([node(), range]).serviceCidrs).toHaveLength(1)
    expect(tableOf([node(), range], MINE).serviceCidrs).toEqual([])
  })
})
