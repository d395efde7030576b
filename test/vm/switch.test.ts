import { execFileSync } from 'node:child_process'
import { afterAll, afterEach, beforeAll, expect, test } from 'vitest'
import type { Daemon } from '../support/daemon.ts'
import {
  CLUSTER_IP,
  changeMode,
  expectAllAnswered,
  ModeSwitch,
  STEP_MS,
  tables,
} from '../support/mode-switch.ts'

/* docs/decisions/0015: one mode takes the other's place under traffic. */

let rig: ModeSwitch

beforeAll(async () => {
  rig = await ModeSwitch.open()
})

afterEach(() => rig.endDaemons())

afterAll(async () => {
  await rig?.close()
})

async function untilTables(daemon: Daemon, wanted: readonly string[]): Promise<void> {
  await daemon.until(() => JSON.stringify(tables()) === JSON.stringify(wanted), STEP_MS)
}

const NFTABLES = ['table ip kube-proxy', 'table ip6 kube-proxy']
const IPVS = NFTABLES.map(table => `${table}-ipvs`)

test('from nftables to ipvs and back: no connection is lost, and none refused', async () => {
  const switched = await rig.start('nftables')
  const { daemon } = switched
  const clients = rig.startClients()
  const talkers = rig.startTalkers()
  try {
    await Promise.all(talkers.map(talker => talker.answers(3)))
    await changeMode(switched, 'ipvs')
    await untilTables(daemon, IPVS)
    // Connections that nf_tables has translated, and those that IPVS now has.
    talkers.push(...rig.startTalkers())
    await Promise.all(talkers.map(talker => talker.answers(5)))
    expect(execFileSync('ipvsadm', ['-S', '-n'], { encoding: 'utf8' })).toContain(
      `-A -t ${CLUSTER_IP}:80 -s rr`,
    )
    await changeMode(switched, 'nftables')
    talkers.push(...rig.startTalkers())
    await Promise.all(talkers.map(talker => talker.answers(5)))
    // IPVS keeps what it has for as long as somebody uses it.
    expect(tables()).toEqual([...IPVS, ...NFTABLES].sort())
    expect(execFileSync('ipvsadm', ['-S', '-n'], { encoding: 'utf8' })).not.toContain('-w 1')
  } finally {
    await Promise.all(talkers.map(talker => talker.close()))
  }
  await expectAllAnswered(clients)
  // IPVS remembers a connection for two minutes after its end: nobody waits for that here.
  execFileSync('ipvsadm', ['-C'])
  await untilTables(daemon, NFTABLES)
  await daemon.logged('removed leftovers of', 2, STEP_MS)
  expect(execFileSync('ipset', ['list', '-n'], { encoding: 'utf8' })).not.toContain('KUBE-')
  expect(execFileSync('ip', ['-br', 'link'], { encoding: 'utf8' })).not.toContain('kube-ipvs0')
})
