import { describe, expect, it } from 'vitest'
import { retireIpvsPlane } from '../../../../src/modes/ipvs/cleanup.ts'
import { readTraffic } from '../../../../src/modes/ipvs/mode.ts'
import { DEFAULT_IPVS_OPTIONS, type IpvsOptions } from '../../../../src/modes/ipvs/settings.ts'
import type { IpvsNode } from '../../../support/ipvs-node.ts'
import { ip } from '../../../support/ipvs-objects.ts'
import { ipvsBench, ipvsKernelOf } from '../../../support/ipvs-rig.ts'
import { serviceOf } from '../../../support/ipvs-services.ts'

const WEB = serviceOf('web', { ip: '172.30.0.1', endpoints: ['10.1.0.1', '10.1.0.2'] })
const DRAIN_MS = 60_000
const options = { ...DEFAULT_IPVS_OPTIONS, drainMs: DRAIN_MS }

async function bench(services = WEB, excludeCidrs: IpvsOptions['excludeCidrs'] = []) {
  const { node, clock, start } = ipvsBench()
  const rig = start({ drainMs: DRAIN_MS, excludeCidrs }, { healPeriodMs: 10_000_000 })
  await rig.sync(services)
  await rig.reconciler.stop()
  const kernel = ipvsKernelOf(node, clock)
  const stop = new AbortController()
  const retire = () => {
    let over = false
    const { plane } = rig
    const done = retireIpvsPlane({
      ...{ kernel, plane, clock, signal: stop.signal },
      options: { ...options, excludeCidrs },
    }).then(() => {
      over = true
    })
    return { isOver: () => over, done }
  }
  return { node, rig, kernel, stop, retire, start }
}

function destinationsOf({ ipvs }: IpvsNode) {
  return [...ipvs.servers.values()].flatMap(({ destinations }) => [...destinations.values()])
}

const left = (node: IpvsNode) => node.dump().filter(line => /^(set|server|real|entry|address)\b/.test(line))

describe('the retirement of IPVS mode', () => {
  it('takes everything away at once where no connection is left', async () => {
    const { node, rig, retire } = await bench()
    const { done } = retire()
    await rig.wait(0)
    await done
    expect(node.ipvs.servers.size).toBe(0)
    expect(left(node)).toEqual([])
    expect((await rig.plane.observe()).state.ruleset.tables).toEqual([])
  })

  it('is finished by the next process, NodePorts included, when it was cut short', async () => {
    const web = serviceOf('web', { ip: '172.30.0.1', endpoints: ['10.1.0.1'], nodePort: 30080 })
    const { node, rig, stop, retire, start } = await bench(web)
    for (const destination of destinationsOf(node)) destination.activeConnections = 1
    const { done } = retire()
    await rig.wait(5_000)
    stop.abort()
    await done
    expect(node.ipvs.servers.size).toBe(2)
    await start({}, { driftPollMs: 0 }).plane.cleanup()
    expect(node.ipvs.servers.size).toBe(0)
    expect(left(node)).toEqual([])
  })

  it('keeps off excluded prefixes', async () => {
    const { node, rig, retire } = await bench(WEB, [{ ip: ip('172.30.0.0'), bits: 24 }])
    const { done } = retire()
    await rig.wait(0)
    await done
    expect(destinationsOf(node).map(({ weight }) => weight)).toEqual([1, 1])
  })

  it('lets connections end behind a guard, without new ones', async () => {
    const { node, rig, kernel, retire } = await bench()
    const [first] = destinationsOf(node)
    if (first === undefined) throw new Error('no destination')
    first.activeConnections = 1
    const { isOver, done } = retire()
    await rig.wait(5_000)
    expect(isOver()).toBe(false)
    expect(destinationsOf(node).map(({ weight }) => weight)).toEqual([0, 0])
    const { ruleset } = await kernel.nft.list([{ family: 'ip', name: options.tableName }])
    const [table] = ruleset.tables
    expect([...(table?.chains.values() ?? [])].map(({ name, hook }) => [name, hook?.priority])).toEqual([
      ['refuse', undefined],
      ['late-prerouting', -99],
      ['late-output', -99],
    ])
    first.activeConnections = 0
    await rig.wait(1_000)
    await done
    expect(left(node)).toEqual([])
  })

  it('waits no longer than it may', async () => {
    const { node, rig, retire } = await bench()
    for (const destination of destinationsOf(node)) destination.inactiveConnections = 2
    const { isOver, done } = retire()
    await rig.wait(DRAIN_MS - 1_000)
    expect(isOver()).toBe(false)
    await rig.wait(2_000)
    await done
    expect(left(node)).toEqual([])
  })

  it('leaves what is there when it is called off', async () => {
    const { node, rig, stop, retire } = await bench()
    for (const destination of destinationsOf(node)) destination.activeConnections = 2
    const { done } = retire()
    await rig.wait(1_000)
    stop.abort()
    await done
    expect(node.ipvs.servers.size).toBe(1)
  })
})

describe('readTraffic', () => {
  it('says of what port each endpoint is, and what it has seen', async () => {
    const { node, rig, kernel } = await bench()
    for (const destination of destinationsOf(node))
      destination.stats = { connections: 3n, packetsIn: 9n, packetsOut: 8n, bytesIn: 90n, bytesOut: 80n }
    const { rendered } = rig.reconciler
    if (rendered === undefined) throw new Error('nothing was rendered')
    const counts = await readTraffic(kernel.ipvs, rendered)
    expect(counts.map(({ endpoint }) => endpoint).sort()).toEqual(['10.1.0.1:8080', '10.1.0.2:8080'])
    expect(counts[0]).toMatchObject({
      port: expect.stringMatching(/web.*\/TCP\/IPv4$/),
      connections: 3n,
      volume: { packetsIn: 9n, packetsOut: 8n, bytesIn: 90n, bytesOut: 80n },
    })
    expect(new Set(counts.map(({ element }) => element)).size).toBe(2)
  })
})
