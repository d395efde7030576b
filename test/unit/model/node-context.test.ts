import { describe, expect, it } from 'vitest'
import {
  familiesAtLocalhost,
  forwardedAtLocalhost,
  type NodePortSelection,
  nodeContextOf,
  nodePortAddresses,
  type ResolveOptions,
} from '../../../src/model/node-context.ts'
import { EMPTY_SNAPSHOT, type Snapshot } from '../../../src/model/snapshot.ts'
import { cidr, ip } from '../../support/addresses.ts'
import { node, OPTIONS, snapshotOf, texts } from './objects.ts'

const LOCAL = [
  '10.0.0.7',
  '10.0.1.7',
  '127.0.0.1',
  '192.168.1.7',
  '::1',
  'fd00::7',
  'fd01::7',
  'fe80::7',
].map(ip)

/** Of each family: all, or these. */
function addresses(
  selection: NodePortSelection,
  snapshot: Snapshot = snapshotOf([node()]),
  { localIps = LOCAL, ...more }: Partial<ResolveOptions> & { localIps?: typeof LOCAL } = {},
): unknown {
  const options = { ...OPTIONS, nodePortSelection: selection, ...more }
  const { IPv4, IPv6 } = nodePortAddresses(nodeContextOf(options, snapshot), localIps)
  return [IPv4, IPv6].map(its => (its.kind === 'all' ? 'all' : texts(its.ips)))
}

const NOTHING = { primary: false, cidrs: [] }
const PRIMARY = { primary: true, cidrs: [] }
const only = (...cidrs: string[]): NodePortSelection => ({ primary: false, cidrs: cidrs.map(cidr) })

describe('familiesAtLocalhost', () => {
  it.each<[string, NodePortSelection, readonly string[]]>([
    ['nothing', NOTHING, []],
    ['primary', PRIMARY, []],
    ['the ranges of the keyword localhost', only('127.0.0.0/8', '::1/128'), ['IPv4', 'IPv6']],
    ['one address of each family', only('127.0.0.1/32'), ['IPv4']],
    ['the other one', only('10.0.0.0/8', '::1/128'), ['IPv6']],
    ['loopback addresses where nothing listens', only('127.0.0.2/32', '127.1.0.0/16'), []],
    ['all addresses', only('0.0.0.0/0', '::/0'), []],
    ['all addresses, and localhost by name', only('0.0.0.0/0', '127.0.0.0/8'), ['IPv4']],
  ])('KEP-6032: for %s', (_, selection, expected) => {
    expect(familiesAtLocalhost(selection)).toEqual(expected)
  })

  it('KEP-6032: counts for modes with a relay alone', () => {
    const nodePortSelection = only('127.0.0.0/8')
    const context = (forwardsLocalhost: boolean) =>
      nodeContextOf({ ...OPTIONS, nodePortSelection, forwardsLocalhost }, EMPTY_SNAPSHOT)
    expect(forwardedAtLocalhost(context(true))).toEqual({ forwardedAtLocalhost: ['IPv4'] })
    expect(forwardedAtLocalhost(context(false))).toEqual({})
  })
})

describe('nodePortAddresses', () => {
  it.each<[string, NodePortSelection, unknown]>([
    ['nothing', NOTHING, ['all', 'all']],
    ['primary', PRIMARY, [['192.168.1.7'], ['fd01::7']]],
    ['one prefix of IPv4', only('10.0.0.0/16'), [['10.0.0.7', '10.0.1.7'], 'all']],
    ['prefixes of both families', only('10.0.0.0/24', 'fd00::/16'), [['10.0.0.7'], ['fd00::7']]],
    ['prefixes that nothing is in', only('172.16.0.0/12', '2001:db8::/32'), [[], []]],
    ['a prefix of length zero', only('0.0.0.0/0', '10.0.0.0/24'), ['all', 'all']],
    ['a prefix of length zero of IPv6', only('::/0', '10.0.0.0/24'), [['10.0.0.7'], 'all']],
    ['loopback', only('127.0.0.0/8', '::1/128'), [[], []]],
    [
      'primary and a prefix',
      { primary: true, cidrs: [cidr('10.0.0.0/24')] },
      [['10.0.0.7', '192.168.1.7'], ['fd01::7']],
    ],
  ])('for %s', (_, selection, expected) => {
    expect(addresses(selection)).toEqual(expected)
  })

  it('drops a primary that is a loopback address, which leaves nothing and so everything', () => {
    const snapshot = snapshotOf([node({ ips: ['127.0.0.1', 'fd01::7'] })])
    expect(addresses(PRIMARY, snapshot)).toEqual(['all', ['fd01::7']])
  })

  it('has loopback addresses of IPv4 for those who ask for them, if they are in a prefix', () => {
    const selection = only('127.0.0.0/8', '10.0.0.0/24', '::1/128', 'fd00::/16')
    expect(addresses(selection, EMPTY_SNAPSHOT, { loopbackNodePorts: true })).toEqual([
      ['10.0.0.7', '127.0.0.1'],
      ['fd00::7'],
    ])
  })

  it.each([
    ['the Node is not known', EMPTY_SNAPSHOT],
    ['the Node has no address yet', snapshotOf([node({ ips: [] })])],
  ])('is nowhere for primary while %s, and the prefixes alone where there are some', (_, snapshot) => {
    expect(addresses(PRIMARY, snapshot)).toEqual([[], []])
    expect(addresses({ primary: true, cidrs: [cidr('10.0.0.0/24')] }, snapshot)).toEqual([['10.0.0.7'], []])
    expect(addresses(NOTHING, snapshot)).toEqual(['all', 'all'])
  })

  it('takes --bind-address for the address of a Node that is not known', () => {
    expect(addresses(PRIMARY, EMPTY_SNAPSHOT, { bindAddress: ip('10.0.0.7') })).toEqual([['10.0.0.7'], 'all'])
  })

  it('lists what everywhere is when asked to, and nothing else otherwise', () => {
    const listed = (selection: NodePortSelection, localIps = LOCAL) =>
      addresses(selection, undefined, { listNodePortAddresses: true, localIps })
    const every = [
      ['10.0.0.7', '10.0.1.7', '192.168.1.7'],
      ['fd00::7', 'fd01::7'],
    ]
    expect(listed(NOTHING)).toEqual(every)
    expect(listed(only('0.0.0.0/0', '::/0'))).toEqual(every)
    expect(listed(NOTHING, [...LOCAL, ip('169.254.20.10')].reverse())).toEqual(every)
    expect(listed(NOTHING, [])).toEqual([[], []])
    expect(listed(only('10.0.0.0/24', 'fe80::/10'))).toEqual([['10.0.0.7'], ['fe80::7']])
  })

  it('knows no Node of another name', () => {
    const other = { ...node(), metadata: { name: 'there' } }
    expect(addresses(PRIMARY, snapshotOf([other]))).toEqual([[], []])
  })
})
