import { describe, expect, it } from 'vitest'
import { type EndpointConditions, NO_HINTS } from '../../../src/model/service.ts'
import { ValuePool } from '../../../src/model/snapshot.ts'
import { IS_QUICK } from '../../support/runs.ts'

const READY: EndpointConditions = { ready: true, serving: true, terminating: false }

function hints(prefix: string, count: number, kind: keyof typeof NO_HINTS = 'forNodes') {
  return {
    ...NO_HINTS,
    [kind]: Array.from({ length: count }, (_, at) => `${prefix}-${at}-`.padEnd(253, 'x')),
  }
}

function ports(prefix: string) {
  return Array.from({ length: 8 }, (_, at) => ({
    name: `${prefix}-${at}-`.padEnd(63, 'x'),
    protocol: 'TCP' as const,
    port: 80,
    nodePort: 0,
  }))
}

describe('a pool of values', () => {
  it('gives equal traits of one node back', () => {
    const pool = new ValuePool()
    const known = pool.traits('node', READY, { forZones: ['a'], forNodes: [] })
    expect(pool.traits('node', READY, { forZones: ['a'], forNodes: [] })).toBe(known)
    expect(pool.traits('node', READY, { forZones: [], forNodes: ['a'] })).not.toBe(known)
    expect(pool.traits('node', { ...READY }, { forZones: ['a'], forNodes: [] })).not.toBe(known)
    expect(pool.traits('other', READY, { forZones: ['a'], forNodes: [] })).not.toBe(known)
  })

  it('shares the traits of 50,000 nodes and conditions with the hints of their zones', () => {
    const pool = new ValuePool()
    const traits = (at: number) => pool.traits(`node-${at}`, READY, { forZones: ['zone-a'], forNodes: [] })
    const first = traits(0)
    for (let at = 1; at < 50_000; at++) traits(at)
    expect(traits(0)).toBe(first)
  })

  it('gives equal text back, and forgets all when it is full', () => {
    const pool = new ValuePool()
    const names = Array.from({ length: 150_000 }, (_, index) => `node-${index}`)
    expect(names.filter(name => pool.name(name) !== name)).toEqual([])
    expect(pool.size).toBeLessThan(75_000)
  })

  // Whoever may write slices may write them again and again, with names that no object has any more.
  it.each(['forZones', 'forNodes'] as const)('holds fewer traits the more text is in them %s', kind => {
    const pool = new ValuePool()
    const first = pool.traits('first', READY, NO_HINTS)
    for (let at = 0; at < 500; at++) pool.traits(`node-${at}`, READY, hints(`${at}`, 8, kind))
    expect(pool.traits('first', READY, NO_HINTS)).toBe(first)
    for (let at = 0; at < 4_000; at++) pool.traits(`node-${at}`, READY, hints(`${at}`, 8, kind))
    expect(pool.traits('first', READY, NO_HINTS)).not.toBe(first)
  })

  it('holds none with more text than values have that come again', () => {
    const pool = new ValuePool()
    const first = pool.traits('first', READY, NO_HINTS)
    const long = hints('', 1_000)
    expect(pool.traits('node', READY, long)).not.toBe(pool.traits('node', READY, long))
    for (let at = 0; at < 300; at++) pool.traits(`node-${at}`, READY, long)
    expect(pool.traits('first', READY, NO_HINTS)).toBe(first)
    expect(pool.name('x'.repeat(10_000))).toHaveLength(10_000)
    expect(pool.size).toBe(0)
  })

  it.skipIf(IS_QUICK)('holds fewer lists of ports the more text is in them', () => {
    const pool = new ValuePool()
    const first = pool.servicePorts(ports('first'))
    expect(pool.servicePorts(ports('first'))).toBe(first)
    const slices = pool.endpointPorts(ports('first'))
    for (let at = 0; at < 5_000; at++) {
      pool.servicePorts(ports(`${at}`))
      pool.endpointPorts(ports(`${at}`))
    }
    expect(pool.servicePorts(ports('first'))).not.toBe(first)
    expect(pool.endpointPorts(ports('first'))).not.toBe(slices)
  })
})
