import { afterAll, beforeAll, expect, it } from 'vitest'
import { systemClock } from '../../src/base/clock.ts'
import { readU32host, u32host } from '../../src/base/octets.ts'
import { createNftClient, type NftClient } from '../../src/kernel/nft/client.ts'
import type { Element, Table } from '../../src/kernel/nft/state.ts'
import { ID_MASK } from '../../src/modes/nftables/layout.ts'
import { createNftablesPlane } from '../../src/modes/nftables/plane.ts'
import { DEFAULT_NFTABLES_OPTIONS } from '../../src/modes/nftables/settings.ts'
import { NETLINK_NETFILTER } from '../../src/netlink/constants.ts'
import { openNetlink } from '../../src/netlink/native.ts'
import { Pass, type ReconcilerEvent } from '../../src/reconcile/pass.ts'
import { Quarantine } from '../../src/reconcile/quarantine.ts'
import { backends, clusterIp, ip4, service, table } from '../support/frontends.ts'
import { freshNetns } from '../support/lab/netns.ts'
import { columns } from '../support/owned.ts'

let client: NftClient

beforeAll(() => {
  freshNetns()
  client = createNftClient({ transport: openNetlink({ protocol: NETLINK_NETFILTER }), clock: systemClock })
})

afterAll(() => client.close())

async function tableNow(): Promise<Table> {
  const { ruleset } = await client.list([{ family: 'ip', name: DEFAULT_NFTABLES_OPTIONS.tableName }])
  const [found] = ruleset.tables
  if (found === undefined) throw new Error('no table')
  return found
}

function elementsOf({ elements }: Table, set: string): Element[] {
  return [...elements.values()].flat().filter(element => element.set === set)
}

it('clients keep their endpoint when endpoints outgrow their set and the table is made anew', async () => {
  const events: ReconcilerEvent[] = []
  const pass = new Pass({
    plane: createNftablesPlane({ client, options: DEFAULT_NFTABLES_OPTIONS }),
    slicing: { sliceMs: 8, nowMs: systemClock.nowMs, breathe: systemClock.breathe },
    nowMs: systemClock.nowMs,
    quarantine: new Quarantine({ minMs: 1000, maxMs: 1000, random: () => 0 }),
    report: event => events.push(event),
    noteRead: () => undefined,
    atGeneration: () => undefined,
    pace: () => Promise.resolve(),
  })
  const affine = service('ns/affine', [
    { affinityTimeoutS: 3600, cluster: backends(2), frontends: [clusterIp(ip4(10, 96, 0, 1), 80)] },
  ])
  await pass.run(table([affine]), 'start')
  const before = await tableNow()
  const set = before.sets.get('affinity')
  const [endpoint] = elementsOf(before, 'endpoints-tcp')
  if (set === undefined || endpoint === undefined) throw new Error('no affinity')

  // As a packet would leave it.
  const number = readU32host(endpoint.key)
  const list = u32host(number & ID_MASK)
  const element: Element = {
    set: 'affinity',
    key: list + ip4(192, 0, 2, 7),
    data: u32host(number),
    comment: '',
    expiresMs: 1_800_000,
  }
  const target = { family: 'ip', table: before.name } as const
  const added = columns([{ element, group: '' }])
  await client.commit([{ ...target, verb: 'add-elements', set, ...added }])

  const crowd = service('ns/crowd', [
    { cluster: backends(4000), frontends: [clusterIp(ip4(10, 96, 0, 2), 80)] },
  ])
  await pass.run(table([affine, crowd]), 'change')
  expect(events.map(({ kind }) => kind)).toEqual(['committed', 'committed'])
  const after = await tableNow()
  expect(after.sets.get('endpoints-tcp')?.size).toBeGreaterThan(before.sets.get('endpoints-tcp')?.size ?? 0)
  expect(elementsOf(after, 'endpoints-tcp')).toHaveLength(4002)
  const [kept, ...others] = elementsOf(after, 'affinity')
  expect(others).toEqual([])
  expect(kept).toMatchObject({ key: element.key, data: element.data })
  expect(kept?.expiresMs).toBeGreaterThan(1_700_000)
  expect(kept?.expiresMs).toBeLessThanOrEqual(1_800_000)
  expect(elementsOf(after, 'endpoints-tcp')).toContainEqual(endpoint)
})
