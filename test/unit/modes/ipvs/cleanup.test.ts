import { describe, expect, it } from 'vitest'
import { formatIp } from '../../../../src/base/ip.ts'
import { serverKey } from '../../../../src/kernel/ipvs/state.ts'
import { freeEndpoints, retireIpvsPlane } from '../../../../src/modes/ipvs/cleanup.ts'
import { DEFAULT_IPVS_OPTIONS, type IpvsOptions } from '../../../../src/modes/ipvs/settings.ts'
import type { IpvsNode } from '../../../support/ipvs-node.ts'
import { ip, newServer, virtual } from '../../../support/ipvs-objects.ts'
import { ipvsBench, ipvsKernelOf } from '../../../support/ipvs-rig.ts'
import { serviceOf } from '../../../support/ipvs-services.ts'

const WEB = serviceOf('web', { ip: '172.30.0.1', endpoints: ['10.1.0.1', '10.1.0.2'] })
const DRAIN_MS = 60_000

/** A node on which a process has programmed these Services, and stands still. */
async function bench(services = WEB, more: Pick<Partial<IpvsOptions>, 'excludeCidrs'> = {}) {
  const { node, clock, start } = ipvsBench()
  const options = { ...DEFAULT_IPVS_OPTIONS, drainMs: DRAIN_MS, ...more }
  const rig = start(options, { resyncPeriodMs: 10_000_000 })
  if (services.length > 0) await rig.sync(services)
  await rig.reconciler.stop()
  const kernel = ipvsKernelOf(node, clock)
  const stop = new AbortController()
  const retire = () => {
    let over = false
    const { plane } = rig
    const done = retireIpvsPlane({ kernel, plane, clock, signal: stop.signal, options }).then(() => {
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
    const { node, rig, retire } = await bench(WEB, { excludeCidrs: [{ ip: ip('172.30.0.0'), bits: 24 }] })
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
    const { ruleset } = await kernel.nft.list([{ family: 'ip', name: DEFAULT_IPVS_OPTIONS.tableName }])
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

describe('F131: freeEndpoints', () => {
  const API = '198.51.100.1'
  const OTHER = '198.51.100.2'
  const NOTHING = { addresses: [], servers: [] }

  /** A Service with this address of the API server, and how an endpoint is freed from it. */
  async function captured(
    services = serviceOf('thief', { ip: '172.30.0.1', externalIPs: [API, OTHER], endpoints: ['10.1.0.1'] }),
  ) {
    const { node, kernel } = await bench(services)
    const free = async (text: string, port: number, options: Partial<IpvsOptions> = {}) => {
      const all = { ...DEFAULT_IPVS_OPTIONS, ...options }
      const { addresses, servers } = await freeEndpoints(kernel, [{ ip: ip(text), port }], all)
      return { addresses: addresses.map(formatIp), servers: servers.map(serverKey) }
    }
    return { node, kernel, free }
  }

  it('removes the address and the virtual server of a captured endpoint, and no others', async () => {
    const { node, kernel, free } = await captured()
    const entries = () => node.dump().filter(line => line.startsWith('entry '))
    const before = entries()
    expect(await free(API, 80)).toEqual({ addresses: [API], servers: [`TCP ${API}:80`] })
    const servers = (await kernel.ipvs.servers()).map(serverKey)
    expect(servers.toSorted()).toEqual(['TCP 172.30.0.1:80', `TCP ${OTHER}:80`])
    expect(node.addresses().map(formatIp).sort()).toEqual(['172.30.0.1', OTHER])
    // The record for the next pass.
    expect(entries()).toEqual(before)
    expect(await free(API, 80)).toEqual(NOTHING)
  })

  it('removes the address that a Service has at another port, and leaves that virtual server', async () => {
    const { free } = await captured()
    expect(await free(API, 6443)).toEqual({ addresses: [API], servers: [] })
  })

  it('leaves a ClusterIP, which only IPVS leads to', async () => {
    const { free } = await captured()
    expect(await free('172.30.0.1', 80)).toEqual(NOTHING)
  })

  it('leaves what others put there', async () => {
    const { kernel, free } = await captured()
    await kernel.dummy.commit('kube-ipvs0', { add: [ip('198.51.100.9')], remove: [] })
    await kernel.ipvs.commit([newServer(virtual('198.51.100.9', 6443))])
    expect(await free('198.51.100.9', 6443)).toEqual(NOTHING)
  })

  it('leaves virtual servers in --ipvs-exclude-cidrs', async () => {
    const { free } = await captured()
    const excludeCidrs = [{ ip: ip('198.51.100.0'), bits: 24 }]
    expect(await free(API, 80, { excludeCidrs })).toEqual({ addresses: [API], servers: [] })
  })

  it('asks for no more than the device where IPVS mode was never in use', async () => {
    const { node, free } = await captured([])
    const before = node.messages
    expect(await free(API, 80)).toEqual(NOTHING)
    expect(node.messages - before).toBe(1)
  })
})
