import { expect, it } from 'vitest'
import { systemClock } from '../../src/base/clock.ts'
import { createNftClient, type NftClient } from '../../src/kernel/nft/client.ts'
import { FaultyTransport } from '../support/faulty-transport.ts'
import { Rig } from '../support/rig.ts'
import { dropNetAdmin } from './capability.ts'
import { FileSite } from './file-site.ts'
import { differences, listRuleset, nft, openNetfilter } from './kernel.ts'
import { services } from './objects.ts'

const NFT_TABLE_F_OWNER = 2
const site = FileSite.ofEachTest()

it('F55: losing the capability is told in words, breaks no rule, and is made up for when it comes back', async () => {
  const rig = new Rig({ transport: new FaultyTransport(openNetfilter()) })
  await rig.sync(services(5))
  const before = listRuleset()
  const giveBack = dropNetAdmin()
  try {
    rig.offer(services(6))
    await rig.until(() => rig.of('failed').length > 0)
    await rig.wait(2_000)
  } finally {
    giveBack()
  }
  expect(listRuleset()).toBe(before)
  expect(rig.reconciler.status.error?.message).toMatch(/EPERM/)
  expect(rig.of('quarantined')).toEqual([])
  // Not one a poll: what is the same is told with the pauses of the retries.
  expect(rig.of('failed').length).toBeLessThanOrEqual(8)
  await rig.synced()
  expect(await differences(services(6))).toEqual([])
  await rig.close()
})

it('F55: an idle daemon without the capability tells it once, and heals what happened meanwhile', async () => {
  const rig = new Rig({ transport: new FaultyTransport(openNetfilter()) })
  await rig.sync(services(5))
  const giveBack = dropNetAdmin()
  await rig.until(() => rig.of('failed').length > 0)
  await rig.wait(1_000)
  giveBack()
  nft('flush ruleset')
  expect(rig.of('failed').map(({ error }) => error.message)).toEqual([expect.stringContaining('EPERM')])
  await rig.until(() => rig.of('repaired').length === 1)
  expect(await differences(services(5))).toEqual([])
  await rig.close()
})

/** A table of our name that belongs to a socket: nobody else may change it while that is open. */
async function ownedTable(): Promise<NftClient> {
  const owner = createNftClient({ transport: openNetfilter(), clock: systemClock })
  const table = { verb: 'add-table', family: 'ip', table: 'kube-proxy', flags: NFT_TABLE_F_OWNER } as const
  expect((await owner.commit([{ ...table, comment: undefined }])).outcome).toBe('committed')
  return owner
}

it('F55: a table of our name that somebody else owns is told in words, and replaced once it is free', async () => {
  const owner = await ownedTable()
  const before = listRuleset()
  const rig = new Rig({ transport: new FaultyTransport(openNetfilter()) })
  rig.offer(services(5))
  await rig.until(() => rig.reconciler.status.error !== undefined)
  expect(rig.reconciler.status.syncedNumber).toBeUndefined()
  expect(rig.reconciler.status.error?.message).toMatch(/table ip kube-proxy.*EPERM/)
  expect(rig.of('quarantined')).toEqual([])
  expect(listRuleset()).toBe(before)
  await owner.close()
  await rig.synced()
  expect(await differences(services(5))).toEqual([])
  await rig.close()
})

it('F55: a daemon that may not change its table ends --once with a reason', async () => {
  const owner = await ownedTable()
  site.write(services(5))
  const daemon = site.daemon({ args: ['--once'] })
  expect((await daemon.ended()).code).toBe(1)
  const [failure] = daemon.said('sync failed; retrying')
  expect(JSON.stringify(failure)).toMatch(/table ip kube-proxy.*EPERM/)
  await owner.close()
})
