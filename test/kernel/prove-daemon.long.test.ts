import { afterEach, beforeEach, expect, it } from 'vitest'
import { tool } from '../support/command.ts'
import { Daemons, EXAMPLES } from '../support/daemon.ts'
import { forwardPackets, freshNetns } from '../support/lab/netns.ts'
import { DIFFERS, metric, proofs, proving, until, verbose } from '../support/proving-daemon.ts'

/* The proof in the daemon, of iptables mode: its whole proofs take long. */

const daemons = new Daemons()
const nft = (...args: readonly string[]): string => tool('nft', ...args)

beforeEach(() => {
  freshNetns()
  forwardPackets()
  tool('ip', 'link', 'set', 'lo', 'up')
})
afterEach(async () => {
  await daemons.end()
  nft('flush', 'ruleset')
})

it('finds a rule of another program in a shared table, and follows the repair of a damaged chain', async () => {
  const daemon = await proving(daemons, EXAMPLES, { mode: 'iptables', more: ['--sync-period=30s'] })
  await until(async () => (await proofs()) > 0)
  expect(await verbose()).toMatch(/^\[\+\]proof ok: everything was proved, \d+ classes of packets/m)
  expect(await metric('differences')).toBe(0)
  nft('flush', 'chain', 'ip', 'nat', 'KUBE-SERVICES')
  await daemon.logged('repaired foreign changes')
  const before = await proofs()
  await until(async () => (await proofs()) > before)
  expect(await metric('differences')).toBe(0)
  nft('insert', 'rule', 'ip', 'filter', 'FORWARD', 'udp', 'dport', '53', 'drop')
  expect((await daemon.logged(DIFFERS))[0]).toMatchObject({
    level: 'warn',
    name: expect.stringMatching(/^kube-system\/kube-dns:dns at .*:53\/UDP$/),
    kernel: expect.stringContaining('drop'),
    rule: 'ip filter FORWARD, rule 1',
  })
  expect(await metric('differences')).toBeGreaterThan(0)
  expect(await verbose()).toMatch(/^\[-\]proof failed: .*\(does not decide\)$/m)
})
