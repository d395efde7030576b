import { afterEach, describe, expect, it } from 'vitest'
import type { Clock } from '../../../src/base/clock.ts'
import { createNftClient, type NftClient } from '../../../src/kernel/nft/client.ts'
import { IptablesPlane } from '../../../src/modes/iptables/plane.ts'
import { DEFAULT_IPTABLES_OPTIONS } from '../../../src/modes/iptables/settings.ts'
import { createNftablesPlane } from '../../../src/modes/nftables/plane.ts'
import { DEFAULT_NFTABLES_OPTIONS } from '../../../src/modes/nftables/settings.ts'
import { UserspacePlane } from '../../../src/modes/userspace/plane.ts'
import { DEFAULT_USERSPACE_OPTIONS } from '../../../src/modes/userspace/settings.ts'
import type { Dataplane, Plan } from '../../../src/reconcile/dataplane.ts'
import { FakeClock } from '../../support/fake-clock.ts'
import { FakeKernel } from '../../support/fake-kernel/kernel.ts'
import { dual } from '../../support/objects.ts'
import { PlaneRig } from '../../support/plane-rig.ts'

const closing: (() => Promise<void>)[] = []

afterEach(async () => {
  for (const close of closing.splice(0)) await close()
})

type Open = (client: NftClient, clock: Clock) => Dataplane<unknown, Plan<unknown>>

const LACK = 'target DNAT (revision 2) for ip6: CONFIG_NETFILTER_XT_NAT'
let lacking = new Map<'ip' | 'ip6', string>()

const MODES = {
  nftables: (client: NftClient) => createNftablesPlane({ client, options: DEFAULT_NFTABLES_OPTIONS }),
  iptables: (client: NftClient, clock: Clock) =>
    new IptablesPlane({ client, clock, options: DEFAULT_IPTABLES_OPTIONS, lacking: () => lacking }),
  userspace: (client: NftClient, clock: Clock) => {
    const plane = new UserspacePlane({ client, clock, options: DEFAULT_USERSPACE_OPTIONS })
    plane.startForwarding()
    closing.push(() => Promise.resolve(plane.destroy()))
    return plane
  },
}

/** What the kernel lacks, by mode: the table of a family, or in IPv6 alone what its rules need. */
const ABSENT = {
  nftables: ['10 table', '2 table', '10 fib', '10 reject'],
  iptables: ['10 table', '10 target'],
  userspace: ['10 table'],
}

function start(open: Open, absent: readonly string[], kernel = new FakeKernel()) {
  const clock = new FakeClock()
  for (const part of absent) kernel.space.absent.add(part)
  const client = createNftClient({ transport: kernel.open(), clock })
  const rig = new PlaneRig({ plane: open(client, clock), clock })
  closing.push(async () => {
    await rig.close()
    await client.close()
  })
  return { kernel, rig }
}

/** Counts the rules and elements of each family. */
function held({ space }: FakeKernel): Readonly<Record<'IPv4' | 'IPv6', number>> {
  const count = (family: number) =>
    [...space.tables.values()]
      .filter(table => table.family === family)
      .flatMap(({ chains, sets }) => [
        ...[...chains.values()].map(({ rules }) => rules.length),
        ...[...sets.values()].map(({ elements }) => elements.size),
      ])
      .reduce((sum, each) => sum + each, 0)
  return { IPv4: count(2), IPv6: count(10) }
}

describe.each(['nftables', 'iptables', 'userspace'] as const)(
  'a kernel that cannot program one family, %s mode',
  mode => {
    const open: Open = MODES[mode]

    it.each(ABSENT[mode])('(no %s) serves the other one, and heals once the kernel can', async absent => {
      const [broken, works] = absent.startsWith('2 ')
        ? (['IPv4', 'IPv6'] as const)
        : (['IPv6', 'IPv4'] as const)
      const { kernel, rig } = start(open, [absent])
      await rig.sync([...dual(1), ...dual(2)])
      const [whole, half] = [held(kernel), held(kernel)[works]]
      expect(whole[broken]).toBe(0)
      expect(half).toBeGreaterThan(10)
      expect(rig.of('family-failed')).toMatchObject([{ family: broken, failures: 1 }])
      expect(rig.reconciler.status.failedFamily?.family).toBe(broken)
      expect([rig.of('quarantined'), rig.of('failed'), rig.reconciler.status.quarantined]).toEqual([
        [],
        [],
        [],
      ])
      // Changes go on.
      await rig.sync([...dual(1), ...dual(2), ...dual(3)])
      expect(held(kernel)[works]).toBeGreaterThan(half)
      expect(held(kernel)[broken]).toBe(0)
      await rig.wait(200_000)
      const failures = rig.of('family-failed').length
      expect(failures).toBeGreaterThan(5)
      expect(failures).toBeLessThan(15)
      expect(rig.of('repaired')).toEqual([])
      kernel.space.absent.clear()
      await rig.until(() => rig.kinds().includes('family-restored'), 301_000)
      expect(rig.reconciler.status.failedFamily).toBeUndefined()
      const { rig: healthy, kernel: other } = start(open, [])
      await healthy.sync([...dual(1), ...dual(2), ...dual(3)])
      expect(held(kernel)).toEqual(held(other))
    })

    it('writes nothing and fails as a whole where it can program neither', async () => {
      const { kernel, rig } = start(open, ['2 table', '10 table'])
      rig.offer(dual(1))
      await rig.wait(60_000)
      expect(held(kernel)).toEqual({ IPv4: 0, IPv6: 0 })
      expect(rig.of('family-failed')).toEqual([])
      expect(rig.of('failed').length).toBeGreaterThan(2)
      expect(rig.reconciler.status.syncedNumber).toBeUndefined()
      kernel.space.absent.clear()
      await rig.synced(60_000)
    })
  },
)

it('keeps the rules of a family whose new rules are rejected, and follows the other', async () => {
  const before = start(MODES.nftables, [])
  await before.rig.sync(dual(1))
  await before.rig.close()
  const other: Open = client =>
    createNftablesPlane({ client, options: { ...DEFAULT_NFTABLES_OPTIONS, masqueradeBit: 9 } })
  const kept = held(before.kernel)
  const { rig, kernel } = start(other, ['10 meta'], before.kernel)
  await rig.sync([...dual(1), ...dual(2)])
  expect(rig.of('family-failed')).toMatchObject([{ family: 'IPv6' }])
  expect(held(kernel).IPv6).toBe(kept.IPv6)
  expect(held(kernel).IPv4).toBeGreaterThan(kept.IPv4)
  const whole = held(kernel)
  const neighbor = createNftClient({ transport: kernel.open(), clock: rig.clock })
  const place = { verb: 'flush-chain', table: 'kube-proxy', chain: 'services' } as const
  const { outcome } = await neighbor.commit([
    { ...place, family: 'ip' },
    { ...place, family: 'ip6' },
  ])
  expect(outcome).toBe('committed')
  await rig.until(() => rig.kinds().includes('repaired'), 10_000)
  await neighbor.close()
  expect(held(kernel).IPv4).toBe(whole.IPv4)
  const [damage, ...more] = rig.of('repaired')
  expect(more).toEqual([])
  expect(damage?.objects.length).toBeGreaterThan(0)
  expect(damage?.objects.filter(object => !/\bip kube-proxy\b/.test(object))).toEqual([])
  kernel.space.absent.clear()
  await rig.until(() => rig.kinds().includes('family-restored'), 301_000)
  expect(held(kernel).IPv6).toBeGreaterThan(kept.IPv6)
})

it('blames the family for a Service whose rules need what the kernel lacks in it, iptables mode', async () => {
  const { kernel, rig } = start(MODES.iptables, ['10 target DNAT'])
  lacking = new Map([['ip6', LACK]])
  await rig.sync(dual(1))
  lacking = new Map()
  expect(rig.of('quarantined')).toEqual([])
  expect(rig.of('family-failed')[0]?.error.message).toContain(LACK)
  expect(held(kernel).IPv6).toBe(0)
})
