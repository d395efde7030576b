import { describe, expect, it } from 'vitest'
import { formatApiAddress, parseRelayAddress } from '../../../src/base/api-address.ts'
import { inOrderFor } from '../../../src/relay/names.ts'

const RELAYS = ['a', 'a', 'b', 'b', 'c'].map((zone, index) => `tcp://10.0.0.${index}:1@${zone}`)
const NODES = Array.from({ length: 900 }, (_, index) => ({
  name: `node-${index}`,
  zone: ['a', 'b', 'c'][index % 3] ?? '',
}))

function orderOf(node: (typeof NODES)[number], relays = RELAYS): readonly string[] {
  const addresses = relays.map(parseRelayAddress).filter(its => 'address' in its)
  return inOrderFor(node, addresses).map(({ address }) => formatApiAddress(address))
}

function firsts(nodes: readonly (typeof NODES)[number][], relays = RELAYS): ReadonlyMap<string, number> {
  const counts = new Map<string, number>()
  for (const node of nodes) {
    const [first = ''] = orderOf(node, relays)
    counts.set(first, (counts.get(first) ?? 0) + 1)
  }
  return counts
}

const zoneOf = (address: string): string =>
  RELAYS.find(its => its.startsWith(`${address}@`))?.split('@')[1] ?? ''

describe('the order of relays', () => {
  it('begins with those of the zone of the node, over which nodes spread', () => {
    for (const node of NODES) {
      const zones = orderOf(node).map(zoneOf)
      const own = zones.filter(zone => zone === node.zone).length
      expect(zones.slice(0, own)).toEqual(Array.from({ length: own }, () => node.zone))
    }
    const counts = firsts(NODES)
    for (const [index, least] of [120, 120, 120, 120, 300].entries())
      expect(counts.get(`tcp://10.0.0.${index}:1`)).toBeGreaterThanOrEqual(least)
  })

  it('goes on in the zone when a relay of it fails, and then over all others', () => {
    const inA = NODES.filter(({ zone }) => zone === 'a')
    const without = (...gone: number[]) => RELAYS.filter((_, index) => !gone.includes(index))
    expect([...firsts(inA, without(0))]).toEqual([['tcp://10.0.0.1:1', 300]])
    const elsewhere = firsts(inA, without(0, 1))
    expect([...elsewhere.keys()].sort()).toEqual(['tcp://10.0.0.2:1', 'tcp://10.0.0.3:1', 'tcp://10.0.0.4:1'])
    for (const count of elsewhere.values()) expect(count).toBeGreaterThan(70)
    // Only the nodes of the relay that is gone move.
    for (const node of inA) {
      const [before = '', next = ''] = orderOf(node)
      const [after = ''] = orderOf(node, without(0))
      expect(after).toBe(before === 'tcp://10.0.0.0:1' ? next : before)
    }
  })

  it('knows no zone of a node, or of a relay, that is not said', () => {
    const plain = RELAYS.map(text => text.replace(/@.*/, ''))
    for (const { name } of NODES.slice(0, 50)) {
      expect(orderOf({ name, zone: '' })).toEqual(orderOf({ name, zone: '' }, plain))
      expect(orderOf({ name, zone: 'a' }, plain)).toEqual(orderOf({ name, zone: '' }))
    }
  })

  it.each([
    ['tcp://10.0.0.1:1@eu-west-1a', 'eu-west-1a'],
    ['tcp://[fd00::1]:1@z', 'z'],
    ['tcp://10.0.0.1:1', ''],
    ['unix:///run/a@b.sock', ''],
  ])('reads %s', (text, zone) => expect(parseRelayAddress(text).zone).toBe(zone))

  it.each([
    'tcp://10.0.0.1:1@',
    'tcp://10.0.0.1:1@a b',
    'tcp://10.0.0.1:1@a@b',
    `tcp://10.0.0.1:1@${'a'.repeat(64)}`,
  ])('refuses %s', text => expect(() => parseRelayAddress(text)).toThrow('is not a zone'))
})
