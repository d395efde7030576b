import { describe, expect, test } from 'vitest'
import { finish, SYNC_SHARE, systemClock } from '../../../src/base/clock.ts'
import { createNftClient } from '../../../src/kernel/nft/client.ts'
import { printRuleset } from '../../../src/kernel/nft/print.ts'
import type { Element, Ruleset } from '../../../src/kernel/nft/state.ts'
import {
  addressMap,
  createRulesetPlane,
  makeTable,
  natChains,
  type RulesetPlaneOptions,
} from '../../../src/library/nft.ts'
import type { FrontendTable } from '../../../src/model/frontend.ts'
import { EMPTY_SNAPSHOT } from '../../../src/model/snapshot.ts'
import { destinationAddress, mapped, rule, translateAddress } from '../../../src/modes/common/rules.ts'
import { Reconciler } from '../../../src/reconcile/reconciler.ts'
import { FakeKernel } from '../../support/fake-kernel/kernel.ts'
import { backends, clusterIp, ip4, service, table } from '../../support/frontends.ts'
import { NO_MEMO } from '../../support/tables.ts'

/** Sends ClusterIPs to the first endpoint. */
const render: RulesetPlaneOptions['render'] = (layout, { services }) => {
  const translate = [
    rule([destinationAddress(layout, 8), mapped('endpoints', 8, 8), translateAddress(layout, 8)]),
  ]
  const elements = services.values().map(({ service, ports }) => {
    const ofFamily = ports.filter(({ family }) => family === layout.model)
    const list = ofFamily.flatMap(({ frontends, cluster: [first] }) =>
      frontends.flatMap(({ ip }): Element[] =>
        ip === undefined || first === undefined
          ? []
          : [{ set: 'endpoints', key: ip, data: first.ip, comment: service }],
      ),
    )
    return [service, list] as const
  })
  const chains = natChains({ translate, postrouting: [] })
  return makeTable({
    family: layout.family,
    name: 'mine',
    chains,
    sets: [addressMap(layout, 'endpoints')],
    elements,
  })
}

function start() {
  const kernel = new FakeKernel()
  const transport = kernel.open()
  const client = createNftClient({ transport, clock: systemClock })
  const writers = { openTransport: () => kernel.open(), own: transport.portId }
  return { kernel, client, plane: createRulesetPlane({ name: 'mine', client, render, writers }) }
}

function given(...numbers: readonly number[]): FrontendTable {
  const cluster = backends(2)
  return table(
    numbers.map(n => service(`ns/s${n}`, [{ frontends: [clusterIp(ip4(10, 96, 0, n), 80)], cluster }])),
  )
}

const rendered = (plane: ReturnType<typeof createRulesetPlane>, ...services: readonly number[]) =>
  finish(plane.render(given(...services), { base: plane.empty, without: new Set() }))

describe('a plane that is one function', () => {
  test('puts both tables into the kernel in one transaction, and finds them as they are', async () => {
    const { client, plane } = start()
    const wanted = rendered(plane, 1, 2)
    const plan = finish(plane.diff(plane.empty, wanted))
    expect(plan).toMatchObject({ empty: false, complete: true, rebuilds: false })
    expect([...plan.describe()].filter(({ service }) => service === 'ns/s2')).toHaveLength(1)
    expect(await plane.commit(plan, {})).toMatchObject({ outcome: 'committed', refusals: [] })
    const { state, generation } = await plane.observe()
    expect([...printRuleset(state)].filter(line => line.startsWith('table '))).toEqual([
      'table ip mine {',
      'table ip6 mine {',
    ])
    expect(generation).toBe(plane.generation())
    expect(finish(plane.diff(state, wanted)).empty).toBe(true)
    await client.close()
  })

  test('writes only changes, and skips the given Services', async () => {
    const { client, plane } = start()
    const first = rendered(plane, 1, 2)
    await plane.commit(finish(plane.diff(plane.empty, first)), {})
    const without = new Set(['ns/s1'])
    const second = finish(plane.render(given(1, 2, 3), { base: first, without }))
    const plan = finish(plane.diff(first, second))
    expect([...plan.describe()].map(({ verb, service }) => [verb, service])).toEqual([
      ['remove', 'ns/s1'],
      ['add', 'ns/s3'],
    ])
    await client.close()
  })

  test('says that it rebuilds when a table is made anew, which loses what packets left there', async () => {
    const { client, plane } = start()
    const wanted = rendered(plane, 1)
    const before: Ruleset = {
      tables: wanted.tables.map(table => {
        const sets = [...table.sets].map(([name, set]) => [name, { ...set, size: 10 }] as const)
        return { ...table, sets: new Map(sets) }
      }),
    }
    await plane.commit(finish(plane.diff(plane.empty, before)), {})
    const { state } = await plane.observe()
    const plan = finish(plane.diff(state, wanted))
    expect(plan).toMatchObject({ rebuilds: true, empty: false, complete: true })
    expect(await plane.commit(plan, {})).toMatchObject({ outcome: 'committed' })
    const after = (await plane.observe()).state
    expect(finish(plane.diff(after, wanted))).toMatchObject({ rebuilds: false, empty: true })
    await client.close()
  })

  test('cleanup deletes its tables, and no others of the same kernel', async () => {
    const { client, plane } = start()
    await plane.cleanup()
    const wanted = rendered(plane, 1)
    await plane.commit(finish(plane.diff(plane.empty, wanted)), {})
    await client.commit([{ verb: 'add-table', family: 'ip', table: 'other', flags: 0, comment: undefined }])
    await plane.cleanup()
    expect((await plane.observe()).state.tables).toEqual([])
    expect((await client.list([{ family: 'ip', name: 'other' }])).ruleset.tables).toHaveLength(1)
    await client.close()
  })

  test('a Service that cannot be programmed is left out alone', async () => {
    const { client, plane } = start()
    const quarantined: string[] = []
    // Two Services with one address: the kernel refuses the second element.
    const other = { ip: ip4(10, 9, 9, 9), port: 80, local: false }
    const twice = service('ns/s9', [{ frontends: [clusterIp(ip4(10, 96, 0, 1), 443)], cluster: [other] }])
    const frontends = given(1, 2)
    const both = { ...frontends, services: frontends.services.with([[twice.service, twice]]) }
    const reconciler = new Reconciler({
      plane,
      *resolve(_previous, snapshot) {
        yield
        return { snapshot, table: both, memo: NO_MEMO }
      },
      clock: systemClock,
      random: Math.random,
      minIntervalMs: 1,
      share: SYNC_SHARE,
      resyncPeriodMs: 30_000,
      driftPollMs: 0,
      report: event => {
        if (event.kind === 'quarantined') quarantined.push(event.service)
      },
    })
    reconciler.offer(EMPTY_SNAPSHOT)
    await expect.poll(() => reconciler.status.syncedNumber).toBe(both.number)
    expect(quarantined).toHaveLength(1)
    expect(quarantined[0]).toMatch(/^ns\/s[19]$/)
    const { state } = await plane.observe()
    const elements = state.tables[0]?.elements.values().flat() ?? []
    expect(elements.map(({ key }) => key).sort()).toEqual([ip4(10, 96, 0, 1), ip4(10, 96, 0, 2)])
    await reconciler.stop()
    await client.close()
  })

  test('names who changes its tables', async () => {
    const { kernel, client, plane } = start()
    const wanted = rendered(plane, 1)
    await plane.commit(finish(plane.diff(plane.empty, wanted)), {})
    const seen: boolean[] = []
    const stop = plane.watchWriters(({ touchesUs }) => seen.push(touchesUs))
    const other = createNftClient({ transport: kernel.open(), clock: systemClock })
    await other.commit([{ verb: 'delete-table', family: 'ip', table: 'mine' }])
    await expect.poll(() => seen).toEqual([true])
    stop()
    await other.close()
    await client.close()
  })
})
