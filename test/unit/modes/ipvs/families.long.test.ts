import { describe, expect, it } from 'vitest'
import type { IpvsNode } from '../../../support/ipvs-node.ts'
import { ipvsBench } from '../../../support/ipvs-rig.ts'
import { dual } from '../../../support/objects.ts'

function make(rules: 'iptables' | 'nftables' = 'nftables') {
  const { node, start } = ipvsBench()
  return { node, rig: start({ rules }) }
}

/** Gives what brings packets to Services, by family. */
function served(node: IpvsNode): Readonly<Record<'IPv4' | 'IPv6', readonly string[]>> {
  const lines = node.dump().filter(line => /^(virtual|real|address) /.test(line))
  return {
    IPv4: lines.filter(line => !line.includes('fd00:')),
    IPv6: lines.filter(line => line.includes('fd00:')),
  }
}

interface Lack {
  readonly name: string
  readonly family: 'IPv4' | 'IPv6'
  readonly rules?: 'iptables'
  readonly set: (node: IpvsNode, isLacking: boolean) => void
}

const part = (name: string) => (node: IpvsNode, isLacking: boolean) => {
  if (isLacking) node.nft.space.absent.add(name)
  else node.nft.space.absent.delete(name)
}

const LACKS: readonly Lack[] = [
  {
    name: 'ipsets of IPv6',
    family: 'IPv6',
    set: ({ sets: { families } }, is) => (is ? families.delete(10) : families.add(10)),
  },
  {
    name: 'CONFIG_IP_VS_IPV6',
    family: 'IPv6',
    set: ({ ipvs }, is) => {
      ipvs.hasIpv6 = !is
    },
  },
  {
    name: 'addresses of IPv6',
    family: 'IPv6',
    set: ({ links }, is) => {
      links.disablesIpv6 = is
    },
  },
  { name: 'nf_tables for IPv6', family: 'IPv6', set: part('10 table') },
  { name: 'nf_tables for IPv4', family: 'IPv4', set: part('2 table') },
  { name: 'nft_fib_ipv6', family: 'IPv6', set: part('10 fib') },
  { name: 'xtables for IPv6', family: 'IPv6', rules: 'iptables', set: part('10 target') },
]

describe.each(LACKS)('a kernel without $name, IPVS mode', ({ family: broken, rules, set }) => {
  const works = broken === 'IPv6' ? 'IPv4' : 'IPv6'

  it('serves the other family, and heals once the kernel can', async () => {
    const { node, rig } = make(rules)
    set(node, true)
    await rig.sync([...dual(1), ...dual(2)])
    const first = served(node)[works]
    expect(first.filter(line => line.startsWith('address'))).toHaveLength(2)
    expect(first.filter(line => line.startsWith('real'))).toHaveLength(2)
    expect(rig.of('family-failed')).toMatchObject([{ family: broken, failures: 1 }])
    expect(rig.reconciler.status.failedFamily?.family).toBe(broken)
    expect([...rig.of('quarantined'), ...rig.of('failed')]).toEqual([])
    // Changes go on, removals as well.
    await rig.sync([...dual(2), ...dual(3), ...dual(4)])
    expect(served(node)[works].filter(line => line.startsWith('address'))).toHaveLength(3)
    await rig.wait(200_000)
    const failures = rig.of('family-failed').length
    expect(failures).toBeGreaterThan(5)
    expect(failures).toBeLessThan(15)
    expect([...rig.of('repaired'), ...rig.upkeep]).toEqual([])
    set(node, false)
    await rig.until(() => rig.kinds().includes('family-restored'), 301_000)
    const healthy = make(rules)
    await healthy.rig.sync([...dual(2), ...dual(3), ...dual(4)])
    expect(node.dump()).toEqual(healthy.node.dump())
    expect(node.redirects()).toEqual(healthy.node.redirects())
  })
})

it('fails as a whole where the kernel can program neither family', async () => {
  const { node, rig } = make()
  node.sets.families.clear()
  rig.offer(dual(1))
  await rig.wait(60_000)
  expect(rig.of('family-failed')).toEqual([])
  expect(rig.of('failed').length).toBeGreaterThan(2)
  expect(served(node)).toEqual({ IPv4: [], IPv6: [] })
  for (const family of [2, 10]) node.sets.families.add(family)
  await rig.synced(60_000)
})

it('keeps what the kernel holds of a family that it no longer programs, and repairs the other', async () => {
  const { node, rig } = make()
  await rig.sync([...dual(1), ...dual(2)])
  const before = served(node)
  node.ipvs.hasIpv6 = false
  await rig.sync([...dual(1), ...dual(2), ...dual(3)])
  expect(rig.of('family-failed')).toMatchObject([{ family: 'IPv6' }])
  const { IPv4: whole, IPv6: kept } = served(node)
  expect(kept).toEqual(before.IPv6)
  expect(whole.length).toBe(before.IPv4.length * 1.5)
  await rig.sync([...dual(1), ...dual(3)])
  expect(served(node).IPv6).toEqual(before.IPv6)
  expect(served(node).IPv4).toHaveLength(before.IPv4.length)
})
