import { cpSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { afterEach, expect, it } from 'vitest'
import { runInProcess, tool } from '../support/command.ts'
import { Daemons, EXAMPLES } from '../support/daemon.ts'
import {
  AGAIN,
  DIFFERS,
  metric,
  moreObjects,
  proofs,
  proving,
  until,
  verbose,
} from '../support/proving-daemon.ts'

/* The proof in the daemon, of virtual servers, ipsets and rules as a kernel with IPVS holds them. */

const NODE = '00-node.yaml'
const daemons = new Daemons()
const nft = (line: string): string => tool('nft', ...line.split(' '))

afterEach(async () => {
  await daemons.end()
  // Of a try that ended early: what it drops is a difference from the start of the next one.
  tool('nft', 'flush', 'ruleset')
  await runInProcess(['cleanup', '--force'])
})

// With rules of iptables, proof-ipvs.test.ts proves: a proof at a tenth of a guest's processor takes minutes.
it('follows what changes, damage and chains of others', async () => {
  const folder = daemons.folder()
  // Few objects: a proof may take a tenth of a processor, which the guest emulates.
  cpSync(join(EXAMPLES, NODE), join(folder, NODE))
  const file = join(folder, 'more.yaml')
  writeFileSync(file, moreObjects(1))
  const more = ['--ipvs-rules=nftables', '--ipvs-sync-period=10s']
  const daemon = await proving(daemons, folder, { mode: 'ipvs', more })
  await until(async () => (await proofs()) > 0)
  expect(await verbose()).toContain('[+]proof ok: everything was proved')
  const first = await proofs()
  writeFileSync(file, moreObjects(2))
  // A proof may be under way that began before the change.
  await until(async () => (await proofs()) > first + 1)
  expect(await metric('differences')).toBe(0)

  nft('add table ip other')
  nft('add chain ip other first { type filter hook prerouting priority -300; }')
  nft('add rule ip other first tcp dport 80 drop')
  expect((await daemon.logged(DIFFERS))[0]).toMatchObject({
    kernel: 'drop',
    rule: 'ip other first, rule 1',
  })
  nft('delete table ip other')
  await daemon.logged(AGAIN)

  const [before, told] = [await proofs(), daemon.said(DIFFERS).length]
  tool('ipvsadm', '-D', '-t', '10.96.77.7:80')
  const isRepaired = () => tool('ipvsadm', '-L', '-n').includes('10.96.77.7:80')
  await until(async () => isRepaired() && (await proofs()) > before && (await metric('differences')) === 0)
  await daemon.caughtUp()
  // A proof may come between the damage and its repair.
  for (const { kernel } of daemon.said(DIFFERS).slice(told))
    expect(kernel).toBe('this node itself: a device has the address, and no virtual server')
})
