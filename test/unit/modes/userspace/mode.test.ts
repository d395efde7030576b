import { expect, it } from 'vitest'
import { finish, systemClock } from '../../../../src/base/clock.ts'
import type { Config } from '../../../../src/config/config.ts'
import { tracerOf } from '../../../../src/inspect/tracer.ts'
import { createNftClient } from '../../../../src/kernel/nft/client.ts'
import type { FrontendTable } from '../../../../src/model/frontend.ts'
import type { ModeContext, ModeEvent } from '../../../../src/modes/mode.ts'
import { openUserspace, userspace } from '../../../../src/modes/userspace/mode.ts'
import { FakeKernel } from '../../../support/fake-kernel/kernel.ts'
import { backends, clusterIp, service, table } from '../../../support/frontends.ts'
import { commitAll, ip } from '../../../support/pipeline.ts'

const CONFIG = { proxyMode: 'userspace', detectLocal: { kind: 'NodeCIDR' } } as Config
const VIP = ip('10.96.0.1')

function contextOf(kernel: FakeKernel, told: ModeEvent[] = []): ModeContext {
  const netfilter = () => kernel.open()
  const none = () => {
    throw new Error('the mode speaks with nf_tables alone')
  }
  const sockets = { netfilter, generic: none, route: none }
  return { config: CONFIG, clock: systemClock, sockets, tell: event => void told.push(event) }
}

function web(protocol: 'TCP' | 'SCTP' = 'TCP'): FrontendTable {
  const port = { protocol, frontends: [clusterIp(VIP, 80)], cluster: backends(2) }
  return table([service('ns/web', [port])], { node: { ips: [ip('127.0.0.1')], podCidrs: [] } })
}

it('relays no more than the process has room for', async () => {
  const told: ModeEvent[] = []
  const context = contextOf(new FakeKernel(), told)
  const room = () => ({ descriptors: 1_200, memoryBytes: undefined })
  const { start, close } = openUserspace({ ...context, sockets: { ...context.sockets, room } })
  start()
  const text = expect.stringContaining('this process relays every connection')
  expect(told).toMatchObject([
    { kind: 'notice', level: 'warn', text, facts: { connections: 240, sessions: 240 } },
  ])
  await close()
})

it('goes when it retires, and leaves everything when it is called off', async () => {
  const kernel = new FakeKernel()
  const { plane, start, close } = openUserspace(contextOf(kernel))
  start()
  await commitAll(plane, plane.empty, finish(plane.render(web(), { base: plane.empty, without: new Set() })))
  await close()
  expect(await userspace.retire(contextOf(kernel), AbortSignal.abort(), true)).toHaveProperty('kept')
  expect(kernel.space.tables.size).toBe(2)
  const { signal } = new AbortController()
  expect(await userspace.retire(contextOf(kernel), signal, true)).toBe('removed')
  expect(kernel.space.tables.size).toBe(0)
})

it('is cleaned up beside a table of the name that is not ours, or says that it cannot be', async () => {
  const kernel = new FakeKernel()
  const { plane, start, close } = openUserspace(contextOf(kernel))
  start()
  await commitAll(plane, plane.empty, finish(plane.render(web(), { base: plane.empty, without: new Set() })))
  await close()
  const cleanup = () => userspace.cleanup({ ...contextOf(kernel), proxy: undefined })
  kernel.forced.push({ matches: () => true, code: 'EPERM' })
  await expect(cleanup()).rejects.toThrow(/^clean up: /)
  kernel.forced.pop()
  const client = createNftClient({ transport: kernel.open(), clock: systemClock })
  const foreign = { family: 'ip', table: 'kube-proxy-userspace' } as const
  await client.commit([
    { ...foreign, verb: 'delete-table' },
    { ...foreign, verb: 'add-table', flags: 0, comment: undefined },
  ])
  await client.close()
  expect((await cleanup()).removed).toEqual(['table ip6 kube-proxy-userspace'])
  expect((await cleanup()).removed).toEqual([])
  expect(kernel.space.tables.size).toBe(1)
})

it('tells which ports have no place in it', async () => {
  const { plane, unsupported, close } = openUserspace(contextOf(new FakeKernel()))
  const wanted = finish(plane.render(web('SCTP'), { base: plane.empty, without: new Set() }))
  expect(unsupported(wanted)).toMatchObject([{ object: 'Service ns/web', value: 'SCTP of ns/web' }])
  await close()
})

it('follows a packet to its endpoint, and says that it comes from this node', () => {
  const tracer = tracerOf(userspace.traced(CONFIG, web()))
  const packet = {
    origin: 'interface' as const,
    protocol: 6,
    source: ip('192.0.2.1'),
    sourcePort: 40_000,
    destination: VIP,
    destinationPort: 80,
  }
  const trace = tracer.trace(packet, { localIps: new Set(), random: () => 1 })
  const [, second] = backends(2)
  expect(trace).toMatchObject({
    verdict: 'dnat',
    masquerade: true,
    destination: { ip: second?.ip, port: 8080 },
  })
  expect(trace.steps.at(-1)).toMatchObject({
    chain: 'relay TCP ns/web (cluster)',
    text: 'round robin, from this node',
  })
})
