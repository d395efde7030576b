import { execFileSync } from 'node:child_process'
import { readFileSync } from 'node:fs'
import { gunzipSync } from 'node:zlib'
import { afterAll, beforeAll, expect, it } from 'vitest'
import { finish } from '../../src/base/clock.ts'
import type { Operation } from '../../src/kernel/nft/transaction.ts'
import { NETLINK_NETFILTER } from '../../src/netlink/constants.ts'
import { openNetlink } from '../../src/netlink/native.ts'
import { backends, clusterIp, ip4, service, table } from '../support/frontends.ts'
import { freshNetns } from '../support/lab/netns.ts'
import { openPlane } from '../support/pipeline.ts'
import { render } from '../unit/modes/nftables/inspect.ts'

/**
 * One batch, as a daemon with the layout before this one sent it: chains called `reject`, V in the packet mark, one map
 * of endpoints. nft could not load a listing of it.
 */
const FORMER = gunzipSync(
  Buffer.from(readFileSync(new URL('former-layout.gz.b64', import.meta.url), 'utf8'), 'base64'),
)

const { client, plane } = (() => {
  freshNetns()
  return openPlane({})
})()
const sender = openNetlink({ protocol: NETLINK_NETFILTER })

beforeAll(() => sender.sendSync(FORMER))
afterAll(async () => {
  await client.close()
  await sender.close()
})

const ruleset = (): string => execFileSync('nft', ['list', 'ruleset'], { encoding: 'utf8' })

function verbsOn(family: string, transaction: readonly Operation[]): readonly string[] {
  return transaction.filter(one => one.family === family).map(({ verb }) => verb)
}

it('replaces the tables of the former layout in one transaction, and finds nothing to change afterwards', async () => {
  expect(ruleset()).toContain('chain reject {')
  const { state: former } = await plane.observe()
  const port = { name: 'http', cluster: backends(3), frontends: [clusterIp(ip4(10, 96, 0, 1), 80)] }
  const wanted = render(table([service('ns/web', [port])]), former)
  const plan = finish(plane.diff(former, wanted))
  expect(plan.complete).toBe(true)
  for (const family of ['ip', 'ip6'])
    expect(verbsOn(family, plan.transaction).slice(0, 3)).toEqual(['add-table', 'delete-table', 'add-table'])
  expect((await plane.commit(plan, {})).outcome).toBe('committed')
  expect(finish(plane.diff((await plane.observe()).state, wanted)).transaction).toEqual([])
  expect(ruleset()).not.toMatch(/chain reject \{|map endpoints \{/)
})
