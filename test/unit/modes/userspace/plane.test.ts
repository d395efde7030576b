import { once } from 'node:events'
import { afterEach, beforeEach, expect, it } from 'vitest'
import { finish, systemClock } from '../../../../src/base/clock.ts'
import { createNftClient, type NftClient } from '../../../../src/kernel/nft/client.ts'
import type { Backend, FrontendTable } from '../../../../src/model/frontend.ts'
import { DEFAULT_LIMITS } from '../../../../src/modes/common/forwarder/context.ts'
import { UserspacePlane } from '../../../../src/modes/userspace/plane.ts'
import { DEFAULT_USERSPACE_OPTIONS } from '../../../../src/modes/userspace/settings.ts'
import { isSymbol, type UserspacePlan, type UserspaceState } from '../../../../src/modes/userspace/state.ts'
import { FakeKernel } from '../../../support/fake-kernel/kernel.ts'
import {
  backends,
  clusterIp,
  EXTERNAL_LOCAL,
  ip4,
  nodePort,
  service,
  table,
} from '../../../support/frontends.ts'
import { commitAll } from '../../../support/pipeline.ts'
import { ForwarderRig, fate, LOOPBACK, readAll } from '../common/forwarder/rig.ts'

let kernel: FakeKernel
let client: NftClient
let plane: UserspacePlane
const rig = new ForwarderRig()
const opened: (() => void)[] = []

function openPlane(over = client): UserspacePlane {
  const made = new UserspacePlane({ client: over, clock: systemClock, options: DEFAULT_USERSPACE_OPTIONS })
  opened.push(() => made.destroy())
  return made
}

/** A plane that forwards, and whose commits go this way. */
function openPlaneOver(commit: NftClient['commit']): UserspacePlane {
  const made = openPlane({
    ...client,
    list: client.list.bind(client),
    generation: () => client.generation(),
    commit,
  })
  made.startForwarding()
  return made
}

beforeEach(() => {
  kernel = new FakeKernel()
  client = createNftClient({ transport: kernel.open(), clock: systemClock })
  plane = openPlane()
  plane.startForwarding()
})

afterEach(async () => {
  for (const close of opened.splice(0)) close()
  rig.close()
  await client.close()
})

const NODE = { node: { ips: [LOOPBACK], podCidrs: [] } }

function web(cluster: readonly Backend[], more: Partial<FrontendTable> = {}): FrontendTable {
  const frontends = [clusterIp(ip4(10, 96, 0, 1), 80), nodePort(30080, EXTERNAL_LOCAL)]
  const local = cluster.slice(0, 1)
  return table([service('ns/web', [{ frontends, cluster, local }])], { ...NODE, ...more })
}

/** What leads from a state to these Services. */
function planned(frontends: FrontendTable, base: UserspaceState = plane.empty, on = plane): UserspacePlan {
  return finish(on.diff(base, finish(on.render(frontends, { base, without: new Set() }))))
}

async function program(frontends: FrontendTable, from?: UserspaceState, on = plane): Promise<UserspaceState> {
  const base = from ?? (await on.observe()).state
  const wanted = finish(on.render(frontends, { base, without: new Set() }))
  return await commitAll(on, base, wanted)
}

/** The port of a listener, as the kernel has it beside a place of a map. */
async function listenerPort(set: string): Promise<number> {
  const { ruleset } = await client.list([{ family: 'ip', name: 'kube-proxy-userspace' }])
  const found = ruleset.tables[0]?.elements.get(set)?.[0]
  const data = typeof found?.data === 'string' ? found.data : ''
  return (data.charCodeAt(4) << 8) | data.charCodeAt(5)
}

it('writes the ports that listeners got, and reads them back as what was asked for', async () => {
  const backend = await rig.server(socket => void socket.end('web'))
  const held = await program(web([backend]))
  expect(plane.counts.listeners).toBe(2)
  const port = await listenerPort('frontends')
  const connection = rig.client(port)
  connection.end()
  expect(await readAll(connection)).toBe('web')
  const { state } = await plane.observe()
  expect(finish(plane.diff(state, held)).empty).toBe(true)
  const elements = state.ruleset.tables.flatMap(each => [...each.elements.values()].flat())
  expect(elements.filter(({ set, data }) => set === 'frontends' && isSymbol(data))).toHaveLength(1)
})

it('changes nothing in the kernel for other endpoints', async () => {
  const before = await program(web(backends(3)))
  const plan = planned(web(backends(4)), before)
  expect(plan.transaction).toEqual([])
  expect(plan).toMatchObject({ empty: false, changes: 1 })
  expect([...plan.describe()]).toEqual([
    {
      verb: 'change',
      object: 'relay TCP ns/web: at 127.0.0.1 (cluster, local) to 4 endpoints',
      service: 'ns/web',
    },
  ])
  const { generation } = kernel
  expect(await plane.commit(plan, {})).toMatchObject({ outcome: 'committed', messages: 0 })
  expect(kernel.generation).toBe(generation)
})

it('opens no door before the rules are there, and closes what they do not lead to', async () => {
  kernel.forced.push({ matches: () => true, code: 'EINVAL' })
  const receipt = await plane.commit(planned(web(backends(1))), {})
  expect(receipt.outcome).toBe('refused')
  expect(plane.counts.listeners).toBe(0)
  kernel.forced.length = 0
  await program(web(backends(1)))
  const port = await listenerPort('frontends')
  await program(table([], NODE))
  expect(plane.counts.listeners).toBe(0)
  expect(await fate(rig.client(port))).toBe('ECONNREFUSED')
})

it('leaves no door open when the rules cannot be sent', async () => {
  const ports: number[] = []
  const unheard = openPlaneOver(transaction => {
    for (const each of transaction)
      if (each.verb === 'add-elements' && each.set.name === 'frontends')
        for (const { data } of each.elements)
          if (typeof data === 'string') ports.push((data.charCodeAt(4) << 8) | data.charCodeAt(5))
    return Promise.reject(new Error('no descriptor is left'))
  })
  await expect(program(web(backends(1)), unheard.empty, unheard)).rejects.toThrow('no descriptor is left')
  expect(unheard.counts.listeners).toBe(0)
  expect(ports).toHaveLength(1)
  expect(await fate(rig.client(ports[0] ?? 0))).toBe('ECONNREFUSED')
})

it('keeps listeners to which the kernel may lead, until a commit of known outcome', async () => {
  const backend = await rig.server(socket => void socket.end('web'))
  let isLost = true
  const unsure = openPlaneOver(async (transaction, options) => {
    const result = await client.commit(transaction, options)
    return isLost ? { ...result, outcome: 'unknown' } : result
  })
  const commitTo = async (frontends: FrontendTable) =>
    await unsure.commit(planned(frontends, (await unsure.observe()).state, unsure), {})
  expect((await commitTo(web([backend]))).outcome).toBe('unknown')
  kernel.forced.push({ matches: () => true, code: 'EINVAL' })
  isLost = false
  expect((await commitTo(web([backend]))).outcome).toBe('refused')
  kernel.forced.length = 0
  const port = await listenerPort('frontends')
  const connection = rig.client(port)
  connection.end()
  expect(await readAll(connection)).toBe('web')
  expect((await commitTo(table([], NODE))).outcome).toBe('committed')
  expect(unsure.counts.listeners).toBe(0)
  expect(await fate(rig.client(port))).toBe('ECONNREFUSED')
})

it('replaces what a process that has ended left, in one transaction', async () => {
  const old = openPlane()
  old.startForwarding()
  const frontends = web(backends(2))
  await program(frontends, undefined, old)
  const before = await listenerPort('frontends')
  old.destroy()
  const { state } = await plane.observe()
  const plan = planned(frontends, state)
  const { generation } = kernel
  expect((await plane.commit(plan, {})).outcome).toBe('committed')
  expect(kernel.generation).toBe(generation + 1)
  expect(await listenerPort('frontends')).not.toBe(before)
  const touched = plan.transaction.map(({ verb }) => verb)
  expect(touched.every(verb => verb.endsWith('-elements'))).toBe(true)
})

it('takes what another process holds for alive when it only looks', async () => {
  const frontends = web(backends(2))
  await program(frontends)
  const looker = openPlane()
  const { state } = await looker.observe()
  const plan = planned(frontends, state, looker)
  expect(plan.empty).toBe(true)
  await expect(looker.commit(plan, {})).rejects.toThrow('no listeners for these rules')
})

it('refuses SCTP, and a family that this node has no address of, by name', () => {
  const frontends = [clusterIp(ip4(10, 96, 0, 1), 80)]
  const wanted = (services: Parameters<typeof table>[0]) =>
    finish(plane.render(table(services, NODE), { base: plane.empty, without: new Set() })).refusals
  const sctp = wanted([service('ns/web', [{ frontends, protocol: 'SCTP', cluster: backends(1) }])])
  expect(sctp.get('ns/web')).toMatchObject([{ object: 'Service ns/web', value: 'SCTP of ns/web' }])
  const v6 = wanted([service('ns/web', [{ frontends, v6: true, cluster: backends(1, { v6: true }) }])])
  expect(v6.get('ns/web')).toMatchObject([{ field: 'spec.ipFamilies', value: 'IPv6' }])
})

it('names the Services whose listeners cannot be opened', async () => {
  // Reserved for documentation: no machine has it.
  const elsewhere = { node: { ips: [ip4(192, 0, 2, 1)], podCidrs: [] } }
  const receipt = await plane.commit(planned(web(backends(1), elsewhere)), {})
  const error = { message: 'Service ns/web: cannot listen on 192.0.2.1: EADDRNOTAVAIL' }
  expect(receipt).toMatchObject({ outcome: 'refused', refusals: [{ services: ['ns/web'], error }] })
  expect(plane.counts.listeners).toBe(0)
})

it('F140: a Service with most listeners gives way to others, and is not served beside them', async () => {
  const options = { ...DEFAULT_USERSPACE_OPTIONS, limits: { ...DEFAULT_LIMITS, listeners: 4 } }
  const small = new UserspacePlane({ client, clock: systemClock, options })
  opened.push(() => small.destroy())
  small.startForwarding()
  const one = (name: string, ports: readonly number[]) =>
    service(
      name,
      ports.map(port => ({
        name: `p${port}`,
        frontends: [clusterIp(ip4(10, 96, 0, 1), port)],
        cluster: backends(1),
      })),
    )
  const greedy = one('ns/greedy', [1, 2, 3, 4])
  const held = await program(table([greedy], NODE), undefined, small)
  expect(small.counts.listeners).toBe(4)
  const others = [one('ns/a', [5]), one('other/b', [6])]
  const both = planned(table([greedy, ...others], NODE), held, small)
  const receipt = await small.commit(both, {})
  expect(receipt.refusals).toMatchObject([
    {
      services: ['ns/greedy'],
      error: { message: expect.stringMatching(/^Service ns\/greedy: no free listener: .*4 listeners/) },
    },
  ])
  expect(small.counts.listeners).toBe(4)
  const without = await program(table(others, NODE), held, small)
  expect([...without.forwarders.values()].map(({ service: its }) => its)).toEqual(['ns/a', 'other/b'])
  expect(small.counts.listeners).toBe(2)
})

it('moves everything when the node has another address', async () => {
  const held = await program(web(backends(1)))
  const moved = await program(web(backends(1), { node: { ips: [ip4(127, 0, 0, 2)], podCidrs: [] } }), held)
  expect(plane.counts.listeners).toBe(2)
  expect([...moved.forwarders.keys()]).toEqual(['ns/web:/TCP/IPv4 127.0.0.2'])
})

it('goes on with connections whose Service is gone, and ends them with everything else', async () => {
  const backend = await rig.server(socket => void socket.write('web'))
  await program(web([backend]))
  const connection = rig.client(await listenerPort('frontends'))
  await once(connection, 'data')
  await program(table([], NODE))
  expect(plane.counts).toMatchObject({ listeners: 0, tcp: { held: 1 } })
  const end = fate(connection)
  plane.destroy()
  expect(await end).toBe('ECONNRESET')
})

it('removes its tables and listeners, and no others', async () => {
  await program(web(backends(1)))
  await client.commit([{ family: 'ip', table: 'mine', verb: 'add-table', flags: 0, comment: undefined }])
  await plane.cleanup()
  expect(plane.counts.listeners).toBe(0)
  const left = await client.list(['mine', 'kube-proxy-userspace'].map(name => ({ family: 'ip', name })))
  expect(left.ruleset.tables.map(({ name }) => name)).toEqual(['mine'])
})
