import { execFileSync } from 'node:child_process'
import { afterAll, afterEach, beforeAll, expect, test } from 'vitest'
import {
  changeMode,
  expectAllAnswered,
  ModeSwitch,
  type SwitchedDaemon,
  tables,
} from '../support/mode-switch.ts'
import type { Talker } from '../support/talkers.ts'

/* docs/decisions/0015, for the modes that every kernel has. */

let rig: ModeSwitch

beforeAll(async () => {
  rig = await ModeSwitch.open()
})

afterEach(() => rig.endDaemons())

afterAll(async () => {
  await rig?.close()
})

function chainsOfServices(): number {
  const saved = execFileSync('iptables-nft-save', ['-t', 'nat'], { encoding: 'utf8' })
  return saved.match(/^:KUBE-SVC-/gm)?.length ?? 0
}

/** Changes the mode, and has new connections made in it while the old ones go on. */
async function changeUnderTraffic(switched: SwitchedDaemon, mode: string, talkers: Talker[]): Promise<void> {
  await changeMode(switched, mode)
  talkers.push(...rig.startTalkers())
  await Promise.all(talkers.map(talker => talker.answers(5)))
}

test('from nftables to iptables and back: no connection is lost, and none refused', async () => {
  const switched = await rig.start('nftables')
  const clients = rig.startClients()
  const talkers = rig.startTalkers()
  try {
    await Promise.all(talkers.map(talker => talker.answers(3)))
    await changeUnderTraffic(switched, 'iptables', talkers)
    expect(chainsOfServices()).toBeGreaterThan(0)
    expect(tables()).not.toContain('table ip kube-proxy')
    await changeUnderTraffic(switched, 'nftables', talkers)
    expect(chainsOfServices()).toBe(0)
    expect(tables()).toContain('table ip kube-proxy')
  } finally {
    await Promise.all(talkers.map(talker => talker.close()))
  }
  await expectAllAnswered(clients)
})
