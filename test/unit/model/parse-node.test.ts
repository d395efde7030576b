import { describe, expect, it } from 'vitest'
import { formatCidr } from '../../../src/base/ip.ts'
import { identityOf, isRefusal } from '../../../src/model/fields.ts'
import { parseNode as parseIdentified, parseServiceCidr } from '../../../src/model/parse-node.ts'
import type { NodeInfo } from '../../../src/model/snapshot.ts'
import { type Fields, refusalLines, texts } from './objects.ts'

const parseNode = (object: Fields) => parseIdentified(identityOf('Node', object))

function parsed(spec: Fields, status: Fields, labels: Fields = {}): NodeInfo {
  const value = parseNode({ metadata: { name: 'node-1.example', labels }, spec, status })
  if (isRefusal(value)) throw new Error(JSON.stringify(value))
  return value
}

describe('parseNode', () => {
  it('lists internal addresses before external ones, each once', () => {
    const addresses = [
      { type: 'ExternalIP', address: '192.0.2.7' },
      { type: 'Hostname', address: 'node-1' },
      { type: 'InternalIP', address: '10.0.0.7' },
      { type: 'InternalIP', address: 'fd00::7' },
      { type: 'ExternalIP', address: '10.0.0.7' },
    ]
    expect(texts(parsed({}, { addresses }).ips)).toEqual(['10.0.0.7', 'fd00::7', '192.0.2.7'])
  })

  it('reads the zone and both forms of podCIDR', () => {
    const node = parsed(
      { podCIDR: '10.1.0.0/24', podCIDRs: ['10.1.0.0/24', 'fd01::/64'] },
      {},
      { 'topology.kubernetes.io/zone': 'a' },
    )
    expect(node.zone).toBe('a')
    expect(node.podCidrs.map(formatCidr)).toEqual(['10.1.0.0/24', 'fd01::/64'])
    expect(parsed({ podCIDR: '10.1.0.7/24' }, {}).podCidrs.map(formatCidr)).toEqual(['10.1.0.0/24'])
    expect(parsed({}, {})).toEqual({
      name: 'node-1.example',
      uid: '',
      eligible: true,
      ips: [],
      zone: '',
      podCidrs: [],
      refusals: [],
    })
  })

  it('refuses one address and one prefix at a time', () => {
    const node = parsed(
      { podCIDRs: ['10.1.0.0/24', 'x'] },
      {
        addresses: [
          { type: 'InternalIP', address: 'a' },
          { type: 'InternalIP', address: '::ffff:1.2.3.4' },
          { type: 'InternalIP', address: '10.0.0.7' },
        ],
      },
    )
    expect(texts(node.ips)).toEqual(['10.0.0.7'])
    expect(refusalLines(node)).toEqual([
      'Node node-1.example: status.addresses[0].address = a: not an IP address; write it like 192.0.2.1 or 2001:db8::1',
      'Node node-1.example: status.addresses[1].address = ::ffff:1.2.3.4: an IPv4-mapped IPv6 address, which programs read as either family; write plain IPv4',
      'Node node-1.example: spec.podCIDRs[1] = x: not a CIDR; write it like 192.0.2.0/24 or 2001:db8::/32',
    ])
  })

  it('reads the UID', () => {
    const value = parseNode({ metadata: { name: 'node-1', uid: 'd2c1' } })
    expect(value).toMatchObject({ uid: 'd2c1' })
    expect(parseNode({ metadata: { name: 'node-1', uid: 7 } })).toMatchObject({ uid: '' })
  })

  it.each([
    ['a Node that is being deleted', { deletionTimestamp: '2026-11-21T10:00:00Z' }, [], false],
    [
      'the taint of the autoscaler',
      {},
      [{ key: 'ToBeDeletedByClusterAutoscaler', effect: 'NoSchedule' }],
      false,
    ],
    ['another taint', {}, [{ key: 'node.kubernetes.io/not-ready', effect: 'NoSchedule' }], true],
    [
      'its value without the key',
      {},
      [{ key: 'x', value: 'ToBeDeletedByClusterAutoscaler' }, 'text', null],
      true,
    ],
    ['no deletion at all', { deletionTimestamp: null }, [], true],
  ])('says whether load balancers may use it: %s', (_, metadata, taints, eligible) => {
    const value = parseNode({ metadata: { name: 'node-1', ...metadata }, spec: { taints } })
    expect(value).toMatchObject({ eligible })
  })

  it('refuses a Node without a name', () => {
    expect(parseNode({ metadata: {} })).toMatchObject({ object: 'Node nothing', field: 'metadata.name' })
  })
})

describe('parseServiceCidr', () => {
  const read = (cidrs: unknown) =>
    parseServiceCidr(identityOf('ServiceCIDR', { metadata: { name: 'kubernetes' }, spec: { cidrs } }))

  it('reads its prefixes', () => {
    const cidrs = read(['10.96.0.0/12', 'fd00:96::/112'])
    expect(isRefusal(cidrs) ? cidrs : cidrs.map(formatCidr)).toEqual(['10.96.0.0/12', 'fd00:96::/112'])
    expect(read(undefined)).toEqual([])
  })

  it.each([
    [['10.96.0.0/12', '10.0.0.1'], 'spec.cidrs[1]', '10.0.0.1'],
    [['0.0.0.0/0'], 'spec.cidrs[0]', '0.0.0.0/0'],
    [['::/0'], 'spec.cidrs[0]', '::/0'],
    ['10.96.0.0/12', 'spec.cidrs', '10.96.0.0/12'],
  ])('refuses %j whole', (cidrs, field, value) => {
    expect(read(cidrs)).toMatchObject({ object: 'ServiceCIDR kubernetes', field, value })
  })
})
