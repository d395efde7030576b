import { describe, expect, it } from 'vitest'
import { IpvsClient } from '../../../../src/kernel/ipvs/client.ts'
import type { IpvsOperation } from '../../../../src/kernel/ipvs/state.ts'
import type { IpvsOptions } from '../../../../src/modes/ipvs/settings.ts'
import type { FakeClock } from '../../../support/fake-clock.ts'
import type { IpvsNode } from '../../../support/ipvs-node.ts'
import { deleteServer, ip, newDestination, newServer, real, virtual } from '../../../support/ipvs-objects.ts'
import { ipvsBench, NODE_IP } from '../../../support/ipvs-rig.ts'
import { type ServiceSpec, serviceOf } from '../../../support/ipvs-services.ts'

const WEB: ServiceSpec = {
  ip: '172.30.0.1',
  endpoints: ['10.1.0.1'],
  externalIPs: ['192.0.2.1'],
  nodePort: 30080,
}
const RESYNC_MS = 60_000

function make() {
  const { start, ...bench } = ipvsBench()
  return {
    ...bench,
    start: (options?: Partial<IpvsOptions>) => start(options, { resyncPeriodMs: RESYNC_MS }),
  }
}

/** What another tool does. */
async function others(node: IpvsNode, clock: FakeClock, ...operations: readonly IpvsOperation[]) {
  const client = new IpvsClient({ transport: node.open('ipvs'), clock })
  const { failures } = await client.commit(operations)
  await client.close()
  expect(failures).toEqual([])
}

function serversOf(node: IpvsNode): readonly string[] {
  return node
    .dump()
    .filter(line => line.startsWith('virtual'))
    .map(line => line.replace(/^virtual (\S+ \S+) .*/, '$1'))
}

/** The same number as a NodePort at an address without NodePorts; another port of an address of a Service. */
const THEIRS = [virtual('198.51.100.9', 30080), virtual('192.0.2.1', 8443)]
const THEIR_NAMES = ['TCP 198.51.100.9:30080', 'TCP 192.0.2.1:8443']
const OUR_NAMES = ['TCP 172.30.0.1:80', 'TCP 192.0.2.1:80', `TCP ${NODE_IP}:30080`]

describe('virtual servers of somebody else', () => {
  it('stay beside ours, whatever numbers and addresses they share with these (F106)', async () => {
    const { node, clock, start, stop } = make()
    const operations = THEIRS.flatMap(server => [
      newServer(server),
      newDestination(server, real('10.9.0.1', 80)),
    ])
    const rig = start({ digestMs: 1_000 })
    rig.plane.startUpkeep()
    await rig.sync(serviceOf('web', WEB))
    await others(node, clock, ...operations)
    await clock.advance(RESYNC_MS + 1_000)
    expect(serversOf(node).toSorted()).toEqual([...OUR_NAMES, ...THEIR_NAMES].toSorted())
    expect(rig.of('repaired')).toEqual([])
    await stop(rig)
    const next = start()
    await next.sync(serviceOf('web', { ...WEB, endpoints: ['10.1.0.2'] }))
    expect(serversOf(node).toSorted()).toEqual([...OUR_NAMES, ...THEIR_NAMES].toSorted())
    await next.plane.cleanup()
    expect(serversOf(node).toSorted()).toEqual(THEIR_NAMES.toSorted())
  })

  it('are told from those that a process before us, or kube-proxy, has left', async () => {
    const { node, start, stop } = make()
    const first = start()
    await first.sync(serviceOf('web', { ...WEB, externalLocal: true, affinityS: 60 }))
    expect(serversOf(node)).toHaveLength(3)
    await stop(first)
    // kube-proxy has sets, and no table of ours.
    node.nft.space.tables.clear()
    const next = start()
    await next.sync([])
    expect(serversOf(node)).toEqual([])
    expect(node.addresses()).toEqual([])
  })

  it('do not become ours by sets that somebody else empties while we run', async () => {
    const { node, start } = make()
    const rig = start()
    await rig.sync(serviceOf('web', WEB))
    for (const set of node.sets.slots) set?.elements.clear()
    node.nft.space.tables.clear()
    rig.offer([])
    await rig.until(() => serversOf(node).length === 0, 2 * RESYNC_MS)
    expect(serversOf(node)).toEqual([])
  })
})

describe('a virtual server of somebody else where a Service wants its own', () => {
  const CLUSTER = 'virtual TCP 172.30.0.1:80'
  const LB = virtual('192.0.2.1', 80, { scheduler: 'lc' })
  const AT_NODE = virtual(NODE_IP, 30080, { scheduler: 'lc' })

  it.each([
    ['an external address', LB, [`TCP ${NODE_IP}:30080`]],
    ['a NodePort', AT_NODE, ['TCP 192.0.2.1:80']],
  ])('is left alone at %s, and the Service says so (F106)', async (_, theirs, rest) => {
    const { node, clock, start, stop } = make()
    await others(node, clock, newServer(theirs), newDestination(theirs, real('10.9.0.1', 80)))
    const theirLines = node.dump()
    const isTheirs = (line: string) => theirLines.includes(line)
    for (let process = 0; process < 2; process++) {
      const rig = start({ digestMs: 1_000 })
      rig.plane.startUpkeep()
      await rig.sync(serviceOf('web', WEB))
      await clock.advance(RESYNC_MS + 1_000)
      expect(node.dump().filter(isTheirs)).toEqual(theirLines)
      expect(serversOf(node).toSorted()).toEqual(
        [
          'TCP 172.30.0.1:80',
          `TCP ${theirs === LB ? '192.0.2.1:80' : `${NODE_IP}:30080`}`,
          ...rest,
        ].toSorted(),
      )
      expect(rig.reconciler.rendered?.refusals.get('ns/web')).toMatchObject([
        { object: 'Service ns/web', value: theirs === LB ? 'TCP 192.0.2.1:80' : `TCP ${NODE_IP}:30080` },
      ])
      expect(rig.of('repaired')).toEqual([])
      await stop(rig)
    }
  })

  it('gives way to the Service when it is gone', async () => {
    const { node, clock, start } = make()
    await others(node, clock, newServer(LB))
    const rig = start()
    await rig.sync(serviceOf('web', WEB))
    expect(node.addresses()).not.toContain(ip('192.0.2.1'))
    await others(node, clock, deleteServer(LB))
    await rig.until(() => node.addresses().includes(ip('192.0.2.1')), 2 * RESYNC_MS)
    expect(serversOf(node)).toContain('TCP 192.0.2.1:80')
    expect(rig.reconciler.rendered?.refusals.size).toBe(0)
  })

  it('is taken over at a ClusterIP, which can be nobody else’s', async () => {
    const { node, clock, start } = make()
    await others(node, clock, newServer(virtual('172.30.0.1', 80, { scheduler: 'lc' })))
    await start().sync(serviceOf('web', WEB))
    expect(node.dump()).toContain(`${CLUSTER} rr 0 0`)
  })

  it('is one of ours when the record of a device with addresses was emptied', async () => {
    const { node, start, stop } = make()
    const first = start()
    await first.sync(serviceOf('web', WEB))
    await stop(first)
    const before = node.dump()
    for (const set of node.sets.slots) set?.elements.clear()
    const rig = start()
    await rig.sync(serviceOf('web', WEB))
    expect(node.dump()).toEqual(before)
    expect(rig.reconciler.rendered?.refusals.size).toBe(0)
  })
})

describe('an excluded prefix', () => {
  const excludeCidrs = [{ ip: ip('172.30.0.0'), bits: 24 }]

  it('does not keep a Service there from being served, nor heals what is whole', async () => {
    const { node, clock, start, stop } = make()
    const first = start({ excludeCidrs })
    await first.sync(serviceOf('web', WEB))
    await stop(first)
    const rig = start({ excludeCidrs })
    await rig.sync(serviceOf('web', { ...WEB, endpoints: ['10.1.0.2'] }))
    expect(node.dump().filter(line => line.startsWith('real TCP 172.30.0.1'))).toEqual([
      'real TCP 172.30.0.1:80 -> 10.1.0.1:8080 weight 0',
      'real TCP 172.30.0.1:80 -> 10.1.0.2:8080 weight 1',
    ])
    const { messages } = node
    await clock.advance(RESYNC_MS + 1_000)
    expect(node.messages).toBeGreaterThan(messages)
    expect(rig.of('repaired')).toEqual([])
  })

  it('keeps what was there before us when nobody wants it', async () => {
    const { node, start, stop } = make()
    const first = start()
    await first.sync(serviceOf('web', WEB))
    await stop(first)
    const rig = start({ excludeCidrs })
    await rig.sync([])
    expect(serversOf(node)).toEqual(['TCP 172.30.0.1:80'])
  })
})
