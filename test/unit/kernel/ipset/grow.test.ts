import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import { capacityFor, growthOf, leftoversOf, temporaryName } from '../../../../src/kernel/ipset/grow.ts'
import { manyEntries, setOf } from '../../../support/fake-ipset/arbitraries.ts'

const SET = setOf('KUBE-CLUSTER-IP', 'hash:ip,port')

describe('the size of a set', () => {
  it('is kube-proxy’s for few elements', () => {
    for (const elements of [0, 1, 1500, 2047])
      expect(capacityFor(elements)).toEqual({ maxElements: 65_536, hashSize: 1024 })
  })

  it('leaves room for twice as many, in powers of two that the attributes hold', () => {
    fc.assert(
      fc.property(fc.nat(2 ** 30), elements => {
        const { maxElements, hashSize } = capacityFor(elements)
        expect(maxElements).toBeGreaterThanOrEqual(elements * 2)
        for (const size of [maxElements, hashSize]) {
          expect(Number.isInteger(Math.log2(size))).toBe(true)
          expect(size).toBeLessThanOrEqual(2 ** 31)
        }
      }),
    )
  })
})

describe('build-and-swap', () => {
  it('removes what was left, fills a larger set, and then puts it in the place of the other', () => {
    const entries = manyEntries(60_000)
    const groups = entries.map((_, i) => `ns/${i}`)
    const { set, build, replace, abandon } = growthOf({ set: SET, entries, groups })
    expect(set).toEqual({ ...SET, maxElements: 131_072, hashSize: 32_768 })
    const temporary = { ...set, name: 'KUBE-CLUSTER-IP-tmp' }
    const destroy = { verb: 'destroy', name: 'KUBE-CLUSTER-IP-tmp' }
    expect(build).toEqual([
      destroy,
      { verb: 'create', set: temporary },
      { verb: 'add-entries', set: temporary, entries, groups },
    ])
    expect(replace).toEqual([{ verb: 'swap', name: temporary.name, with: SET.name }, destroy])
    expect(abandon).toEqual([destroy])
  })

  it('never makes a set smaller', () => {
    const wide = { ...SET, maxElements: 1 << 20, hashSize: 1 << 18 }
    expect(growthOf({ set: wide, entries: manyEntries(10), groups: [] }).set).toEqual(wide)
  })

  it('keeps a set of ports as it is', () => {
    const ports = setOf('KUBE-NODE-PORT-TCP', 'bitmap:port')
    expect(growthOf({ set: ports, entries: [{ port: 80 }], groups: [] }).set).toEqual(ports)
  })
})

describe('temporary names', () => {
  it('fit, and no two sets share one', () => {
    const names = ['KUBE-6-LOAD-BALANCER-SOURCE-IP', 'KUBE-6-LOAD-BALANCER-SOURCE-CID', 'KUBE-IPVS-IPS']
    const temporary = names.map(temporaryName)
    expect(new Set(temporary).size).toBe(3)
    expect(temporary.map(name => name.length <= 31 && name.endsWith('-tmp'))).toEqual([true, true, true])
  })

  it('are recognized among the sets that are there, and no others', () => {
    const names = ['KUBE-CLUSTER-IP', 'KUBE-6-LOAD-BALANCER-SOURCE-CID']
    const existing = new Set([...names, ...names.map(temporaryName), 'foreign-tmp'])
    expect(leftoversOf(names, existing)).toEqual(names.map(temporaryName))
    expect(leftoversOf(names, new Set(names))).toEqual([])
  })
})
