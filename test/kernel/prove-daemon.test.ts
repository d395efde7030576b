import { cpSync, readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { afterEach, beforeEach, expect, it } from 'vitest'
import { tool } from '../support/command.ts'
import { Daemons, EXAMPLES } from '../support/daemon.ts'
import { forwardPackets, freshNetns } from '../support/lab/netns.ts'
import { eventually } from '../support/patience.ts'
import {
  AGAIN,
  DIFFERS,
  HEALTH,
  metric,
  moreObjects,
  proofs,
  proving,
  until,
  verbose,
} from '../support/proving-daemon.ts'

/* The proof in the daemon, of the real kernel's rules. */

const daemons = new Daemons()
const nft = (...args: readonly string[]): string => tool('nft', ...args)
/** What another program changes is not proved before the next period. */
const PERIOD = '--sync-period=3s'

beforeEach(() => {
  freshNetns()
  forwardPackets()
  tool('ip', 'link', 'set', 'lo', 'up')
})
afterEach(async () => {
  await daemons.end()
  nft('flush', 'ruleset')
})

it('finds a chain of another program that drops packets, sees that it goes, and follows a repair', async () => {
  const daemon = await proving(daemons, EXAMPLES, { more: [PERIOD] })
  await until(async () => (await proofs()) > 0)
  expect(await verbose()).toMatch(
    /^\[\+\]ping ok\n\[\+\]programmed-ipv4 ok\n\[\+\]programmed-ipv6 ok\n\[\+\]node-eligible ok\n\[\+\]proof ok: everything was proved, \d+ classes of packets, \d+ s ago\nhealthz check passed\n$/,
  )
  expect(JSON.parse(await (await fetch(HEALTH)).text())).toMatchObject({ healthy: true })
  nft('add', 'table', 'ip', 'other')
  nft('add', 'chain', 'ip', 'other', 'first', '{ type filter hook prerouting priority -300; }')
  nft('add', 'rule', 'ip', 'other', 'first', 'udp', 'dport', '53', 'drop')
  expect((await daemon.logged(DIFFERS))[0]).toMatchObject({
    level: 'warn',
    name: expect.stringMatching(/^kube-system\/kube-dns:dns at .*:53\/UDP$/),
    packet: expect.stringMatching(/^prerouting: UDP from .*:53$/),
    kubernetes: expect.stringContaining('endpoints'),
    kernel: 'drop',
    rule: 'ip other first, rule 1',
  })
  expect(await metric('differences')).toBeGreaterThan(0)
  expect(await verbose()).toMatch(/^\[-\]proof failed: .*\(does not decide\)\nhealthz check passed$/m)
  nft('delete', 'table', 'ip', 'other')
  await daemon.logged(AGAIN)
  expect(await metric('differences')).toBe(0)
  const before = await proofs()
  nft('flush', 'map', 'ip', 'kube-proxy', 'frontends')
  await daemon.logged('repaired foreign changes')
  await until(async () => (await proofs()) > before)
  expect(await metric('differences')).toBe(0)
  expect(await verbose()).toContain('[+]proof ok: everything was proved')
})

it.each([
  ['nftables', 'ip kube-proxy'],
  ['iptables', 'ip nat'],
])('takes no change for a difference that comes while it proves, in %s mode', async (mode, table) => {
  const folder = daemons.folder()
  cpSync(EXAMPLES, folder, { recursive: true })
  const daemon = await proving(daemons, folder, { mode, more: [PERIOD] })
  const file = join(folder, 'more.yaml')
  for (let last = 1; last <= 8; last++) {
    writeFileSync(file, moreObjects(last))
    const addresses = `10.244.9.${last}`
    await eventually(() => nft('list', 'table', ...table.split(' ')).includes(addresses))
  }
  const before = await proofs()
  writeFileSync(file, moreObjects(99))
  await until(async () => (await proofs()) > before + 1)
  expect(await metric('differences')).toBe(0)
  await daemon.caughtUp()
  expect(daemon.said(DIFFERS)).toEqual([])
  expect(readFileSync(file, 'utf8')).toContain('10.244.9.99')
})

it('does nothing where it is off', async () => {
  await proving(daemons, EXAMPLES, { more: ['--prove=off'] })
  expect(await metric('age_seconds')).toBe(0)
  expect(await verbose()).not.toContain('proof')
})
