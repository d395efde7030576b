import { describe, expect, it } from 'vitest'
import { SystemError } from '../../../../src/netlink/transport.ts'
import { elementKey } from '../../../support/fake-ipset/sets.ts'
import { DEVICE, type IpvsNode } from '../../../support/ipvs-node.ts'
import { ip } from '../../../support/ipvs-objects.ts'
import { type IpvsRigOptions, ipvsBench } from '../../../support/ipvs-rig.ts'
import { serviceOf } from '../../../support/ipvs-services.ts'
import { IS_QUICK } from '../../../support/runs.ts'

const WEB = serviceOf('web', { ip: '172.30.0.1', endpoints: ['10.1.0.1', '10.1.0.2'] })
const FAR_OFF_MS = 10_000_000

async function synced(how: Pick<IpvsRigOptions, 'deaf' | 'quiet'> = {}) {
  const { node, start } = ipvsBench()
  const rig = start({ digestMs: 1_000 }, { ...how, resyncPeriodMs: FAR_OFF_MS })
  rig.plane.startUpkeep()
  await rig.sync(WEB)
  await rig.wait(200)
  return { node, rig }
}

/** `ipset add KUBE-LOAD-BALANCER-SOURCE-CIDR 172.30.0.1,tcp:80,10.0.0.0/8 nomatch` */
const EXCEPTION = { ip: ip('172.30.0.1'), protocol: 6, port: 80, ip2: ip('10.0.0.0'), prefix2: 8, flags: 4 }

/** What somebody else may do to the node, and how it is told of. */
const DAMAGE: readonly (readonly [name: string, tamper: (node: IpvsNode) => void, told: RegExp])[] = [
  ['a virtual server is deleted', node => node.ipvs.servers.clear(), /virtual servers deleted: 1/],
  [
    'a virtual server gets another scheduler',
    node => {
      for (const server of node.ipvs.servers.values()) server.scheduler = 'lc'
    },
    /virtual server TCP 172\.30\.0\.1:80 was changed/,
  ],
  [
    'a real server is deleted',
    node => {
      for (const { destinations } of node.ipvs.servers.values())
        destinations.delete([...destinations.keys()][0] ?? '')
    },
    /real server \S+ of TCP 172\.30\.0\.1:80 was deleted/,
  ],
  [
    'a real server gets another weight',
    node => {
      for (const { destinations } of node.ipvs.servers.values())
        for (const destination of destinations.values()) destination.weight = 7
    },
    /real server \S+ of TCP 172\.30\.0\.1:80 was changed/,
  ],
  [
    'a set is emptied',
    node => node.sets.set('KUBE-CLUSTER-IP')?.elements.clear(),
    /ipset KUBE-CLUSTER-IP has 0 entries instead of 1/,
  ],
  [
    'an address is taken out of a set of ranges',
    node => node.sets.set('KUBE-LOAD-BALANCER-SOURCE-CIDR')?.elements.set(elementKey(EXCEPTION), EXCEPTION),
    /ipset KUBE-LOAD-BALANCER-SOURCE-CIDR has 1 entries instead of 0/,
  ],
  [
    'the record of what is ours is emptied',
    node => node.sets.set('KUBE-IPVS-IPS')?.elements.clear(),
    /ipset KUBE-IPVS-IPS has 0 entries instead of 1/,
  ],
]

describe('drift that no kernel tells of', () => {
  it.each(DAMAGE)('is found within a period and healed: %s', async (_, tamper, told) => {
    const { node, rig } = await synced()
    const before = node.dump()
    tamper(node)
    expect(node.dump()).not.toEqual(before)
    await rig.until(() => rig.of('repaired').length > 0, 3_000)
    expect(node.dump()).toEqual(before)
    expect(rig.upkeep[0]).toMatchObject({ kind: 'drift', difference: expect.stringMatching(told) })
    const looks = rig.of('foreign-commit').length
    await rig.wait(5_000)
    expect(rig.of('foreign-commit'), 'it is looked at no more').toHaveLength(looks)
  })

  it.skipIf(IS_QUICK).each(DAMAGE)('is healed when the generation is watched: %s', async (_, tamper) => {
    const { node, rig } = await synced({ quiet: true })
    const before = node.dump()
    tamper(node)
    await rig.until(() => rig.of('repaired').length > 0, 3_000)
    expect(node.dump()).toEqual(before)
  })

  it.skipIf(IS_QUICK).each([false, true])(
    'of addresses is told of, or else looked for: nobody to listen to is %s',
    async deaf => {
      const { node, rig } = await synced({ deaf })
      node.links.byName(DEVICE)?.addresses.splice(0)
      // Of another device; but a notification is a reason to look.
      node.links.addAddress('lo', { family: 2, ip: ip('127.0.0.2'), prefixLength: 8, flags: 0 })
      await rig.until(() => rig.of('repaired').length > 0, deaf ? 3_000 : 500)
      expect(node.addresses()).toEqual([ip('172.30.0.1')])
      expect(rig.upkeep[0]).toMatchObject({ kind: 'drift', difference: 'addresses of kube-ipvs0 deleted: 1' })
    },
  )

  it('is healed when `kprobe plan` reads the kernel first', async () => {
    const { node, rig } = await synced()
    const before = node.dump()
    node.ipvs.servers.clear()
    await rig.plane.observe({ aside: true })
    await rig.until(() => rig.of('repaired').length > 0, 3_000)
    expect(node.dump()).toEqual(before)
  })

  it.skipIf(IS_QUICK)('is not what commits of our own do, however many there are', async () => {
    const { node, rig } = await synced()
    for (let round = 0; round < 40; round++) {
      const endpoints = ['10.1.0.1', `10.1.1.${round}`]
      rig.offer([
        ...serviceOf('web', { ip: '172.30.0.1', endpoints }),
        ...serviceOf('more', { ip: `172.30.1.${round % 7}`, endpoints }),
      ])
      await rig.wait(130)
    }
    await rig.synced()
    await rig.wait(3_000)
    expect(rig.upkeep.filter(({ kind }) => kind === 'drift' || kind === 'failed')).toEqual([])
    expect(rig.of('foreign-commit')).toEqual([])
    expect(rig.of('repaired')).toEqual([])
    expect(node.complaints()).toEqual([])
  })

  it('is not what a commit of our own does that ends without a result', async () => {
    const { node, rig } = await synced()
    let state: 'waits' | 'armed' | 'over' = 'waits'
    node.onSend.push(part => {
      if (part === 'link' && state === 'waits') state = 'armed'
      if (part !== 'nft' || state !== 'armed') return
      state = 'over'
      throw new SystemError('sendmsg', 12, 'ENOMEM')
    })
    await rig.sync([...WEB, ...serviceOf('more', { ip: '172.30.1.1', endpoints: ['10.1.0.1'] })])
    await rig.wait(3_000)
    expect(rig.of('failed')).toMatchObject([{ error: { message: 'sendmsg: ENOMEM' } }])
    expect(rig.upkeep.filter(({ kind }) => kind === 'drift')).toEqual([])
  })

  it('is looked for beside what drains, of which a period reads 256 virtual servers at most', async () => {
    const { rig } = await synced()
    const services = (endpoints: readonly string[]) =>
      Array.from({ length: 400 }, (_, i) =>
        serviceOf(`s${i}`, { ip: `172.30.${2 + (i >> 7)}.${i & 127}`, endpoints }),
      ).flat()
    await rig.sync(services(['10.1.0.1', '10.1.0.2']))
    await rig.sync(services(['10.1.0.2']))
    const drained = () => rig.upkeep.filter(({ kind }) => kind === 'drained').length
    await rig.until(() => drained() > 0, 3_000)
    // Beside the slice of all virtual servers that each period reads.
    expect(drained()).toBeLessThanOrEqual(256 + 64)
    await rig.until(() => drained() === 400, 5_000)
  })

  it.skipIf(IS_QUICK)('looks at every real server within 60 periods, a slice at a time', async () => {
    const { node, rig } = await synced()
    await rig.sync(
      Array.from({ length: 100 }, (_, i) =>
        serviceOf(`s${i}`, { ip: `172.30.2.${i + 1}`, endpoints: ['10.1.0.1'] }),
      ).flat(),
    )
    await rig.wait(70_000)
    for (const { destinations } of node.ipvs.servers.values()) destinations.clear()
    await rig.until(() => rig.of('repaired').length > 0, 10_000)
    expect(node.dump().filter(line => line.startsWith('real'))).toHaveLength(100)
  })
})
