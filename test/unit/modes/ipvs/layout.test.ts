import { describe, expect, it } from 'vitest'
import { FAMILIES } from '../../../../src/base/ip.ts'
import { declareIpset, SET_STEMS, sizeOfNftSet } from '../../../../src/modes/ipvs/layout.ts'

describe('the ipsets', () => {
  const fresh = (count: number) => declareIpset('CLUSTER-IP', 'IPv4', { count, before: undefined })

  it('are 17 in each family, with names that the kernel takes and no two alike', () => {
    const names = FAMILIES.flatMap(family =>
      SET_STEMS.map(stem => declareIpset(stem, family, { count: 0, before: undefined }).name),
    )
    expect(new Set(names).size).toBe(34)
    expect(names.filter(name => name.length > 31)).toEqual([])
    expect(names).toContain('KUBE-6-LOAD-BALANCER-SOURCE-CID')
    expect(names).toContain('KUBE-6-NODE-PORT-LOCAL-SCTP-HAS')
  })

  it('start as kube-proxy makes them', () => {
    expect(fresh(0)).toEqual({
      name: 'KUBE-CLUSTER-IP',
      type: 'hash:ip,port',
      family: 'IPv4',
      maxElements: 65_536,
      hashSize: 1_024,
    })
    expect(declareIpset('NODE-PORT-TCP', 'IPv6', { count: 9, before: undefined })).toEqual({
      name: 'KUBE-6-NODE-PORT-TCP',
      type: 'bitmap:port',
      family: 'IPv4',
      maxElements: 65_536,
      hashSize: 0,
    })
  })

  it('get the next power of two once they are more than three quarters full', () => {
    expect(fresh(49_152).maxElements).toBe(65_536)
    expect(fresh(49_153).maxElements).toBe(131_072)
    expect(fresh(98_305).maxElements).toBe(262_144)
  })

  it('have as many buckets as entries from the start', () => {
    expect(fresh(1_500).hashSize).toBe(2_048)
    expect(fresh(49_153).hashSize).toBe(65_536)
  })

  it('keep the size they have for as long as it does, and what else the kernel says of them', () => {
    const before = { ...fresh(0), maxElements: 262_144, hashSize: 4_096 }
    expect(declareIpset('CLUSTER-IP', 'IPv4', { count: 10, before })).toBe(before)
    expect(declareIpset('CLUSTER-IP', 'IPv4', { count: 196_608, before })).toBe(before)
    expect(declareIpset('CLUSTER-IP', 'IPv4', { count: 196_609, before }).maxElements).toBe(524_288)
  })

  it('are made anew where somebody made them of another type or family', () => {
    const before = { ...fresh(0), type: 'hash:ip', maxElements: 1_048_576 } as const
    expect(declareIpset('CLUSTER-IP', 'IPv4', { count: 0, before })).toEqual(fresh(0))
    const six = { ...fresh(0), family: 'IPv6' } as const
    expect(declareIpset('CLUSTER-IP', 'IPv4', { count: 0, before: six })).toEqual(fresh(0))
  })
})

describe('the sets of our own tables', () => {
  it('grow before they are full, and never shrink', () => {
    expect(sizeOfNftSet('no-local', 0, undefined)).toBe(4_096)
    expect(sizeOfNftSet('no-local', 3_686, 4_096)).toBe(4_096)
    expect(sizeOfNftSet('no-local', 3_687, 4_096)).toBe(8_192)
    expect(sizeOfNftSet('no-local', 1, 8_192)).toBe(8_192)
  })
})
