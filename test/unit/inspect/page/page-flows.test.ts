import { expect, it } from 'vitest'
import { listAt } from '../../../../src/base/plain-data.ts'
import {
  OTHER_PODS,
  OUTSIDE,
  PageFlows,
  THIS_NODE,
  talksOf,
} from '../../../../src/inspect/page/page-flows.ts'
import { FakeClock } from '../../../support/fake-clock.ts'
import { FakeConntrack } from '../../../support/fake-conntrack.ts'
import { entry } from '../../kernel/conntrack/flows.ts'
import { endpoint, node, service, slice, snapshotOf } from '../../model/objects.ts'
import { heldOf, pageSource } from './page-source.ts'

const SNAPSHOT = snapshotOf([
  node(),
  service('web', { type: 'NodePort', ports: [{ port: 80, nodePort: 30_080 }] }),
  slice('web-1', 'web', [endpoint('10.1.0.1')]),
])

function rig(from: readonly string[], held = true) {
  const clock = new FakeClock()
  const table = new FakeConntrack(
    from.map(client => entry(client, '10.96.0.1:80', '10.1.0.1:8080', { protocol: 'TCP' })),
  )
  const source = pageSource({ clock, held: () => (held ? heldOf(SNAPSHOT) : undefined) })
  const flows = new PageFlows(source, take => table.dumpByReply({ isAnswered: true }, take))
  return { clock, table, flows, read: (query = '') => flows.read(new URLSearchParams(query)) }
}

it('names clients by what their address says', async () => {
  const nodeIp = SNAPSHOT.node?.ips[0]
  expect(nodeIp).toBeDefined()
  const { read } = rig(['10.1.0.1:1', '10.1.0.1:2', '10.1.7.7:1', '203.0.113.9:1', '192.0.2.10:1'])
  const { talks } = { talks: listAt(await read(), 'talks') }
  expect(talks).toContainEqual({ from: 'ns', to: 'ns', connections: 2 })
  expect(talks).toContainEqual({ from: OTHER_PODS, to: 'ns', connections: 1 })
  expect(talks).toContainEqual(expect.objectContaining({ from: OUTSIDE }))
  const ports = listAt(await read('namespace=ns'), 'talks')
  expect(ports).toContainEqual({ from: 'ns', to: 'ns/web', connections: 2 })
  expect(listAt(await read('namespace=none'), 'talks')).toEqual([])
})

it('reads the table once for all viewers, and rests in between', async () => {
  const { clock, table, read } = rig(['10.1.0.1:1'])
  await Promise.all([read(), read(), read('namespace=ns')])
  expect(table.dumps).toHaveLength(1)
  await clock.advance(4_999)
  expect(await read()).toMatchObject({ readAgeS: 5 })
  expect(table.dumps).toHaveLength(1)
  await clock.advance(1)
  expect(await read()).toMatchObject({ readAgeS: 0 })
  expect(table.dumps).toHaveLength(2)
})

it('reads anew for a viewer that comes after the last one left', async () => {
  const { table, flows, read } = rig(['10.1.0.1:1'])
  await read()
  flows.forget()
  expect(await read()).toMatchObject({ readAgeS: 0 })
  expect(table.dumps).toHaveLength(2)
})

it('says why there is no map, and tries again', async () => {
  await expect(rig([], false).read()).rejects.toThrow('has not read all objects yet')
  const { clock, table, read } = rig(['10.1.0.1:1'])
  table.failure = new Error('denied')
  await expect(read()).rejects.toThrow('denied')
  table.failure = undefined
  await clock.advance(5_000)
  expect(listAt(await read(), 'talks')).toHaveLength(1)
})

it('sums up the smallest pairs of a large cluster', () => {
  const groups = Array.from({ length: 900 }, (_, n) => ({
    protocol: 'TCP' as const,
    service: `ns-${n}/web:http`,
    endpoint: undefined,
    pod: undefined,
    client: `10.0.0.${n % 2}`,
    begun: n + 1,
    ended: 0,
    unanswered: 0,
    volume: undefined,
  }))
  const talks = talksOf({ groups, sourceOf: client => (client === '10.0.0.0' ? THIS_NODE : 'a') }, '')
  expect(talks).toHaveLength(900)
  expect(talks[0]).toEqual({ from: 'a', to: 'ns-899', connections: 900 })
})
