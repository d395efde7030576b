import { execFileSync } from 'node:child_process'
import { afterAll, afterEach, beforeAll, expect, test } from 'vitest'
import { chainNames } from '../../src/modes/xt-common/layout.ts'
import {
  beginAnew,
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

afterEach(async () => {
  await rig.endDaemons()
  execFileSync('nft', ['flush', 'ruleset'])
})

afterAll(async () => {
  await rig?.close()
})

/** By the prefix of their names. */
function chainsOfServices(): readonly string[] {
  const saved = execFileSync('iptables-nft-save', ['-t', 'nat'], { encoding: 'utf8' })
  return [...saved.matchAll(/^:(\w+)-SVC-/gm)].map(([, prefix = '']) => prefix)
}

/** Until these tables of our own, and no others, are there: the mode that leaves takes a moment. */
async function untilTables({ daemon }: SwitchedDaemon, wanted: readonly string[]): Promise<void> {
  const text = wanted.join()
  await daemon.until(
    () =>
      tables()
        .filter(name => name.includes('kube-proxy'))
        .join() === text,
  )
}

/** Changes the mode, and has new connections made in it while the old ones go on. */
async function changeUnderTraffic(switched: SwitchedDaemon, mode: string, talkers: Talker[]): Promise<void> {
  await changeMode(switched, mode)
  talkers.push(...rig.startTalkers())
  await Promise.all(talkers.map(talker => talker.answers(5)))
}

test.each([
  ['without a name', 'kube-proxy', 'KUBE', []],
  ['with one', 'kube-proxy-red', chainNames('red').prefix, ['--service-proxy-name=red']],
] as const)(
  'from nftables to iptables and back, %s: no connection is lost, and none refused',
  async (_, table, prefix, flags) => {
    const switched = await rig.start('nftables', ...flags)
    const clients = rig.startClients()
    const talkers = rig.startTalkers()
    try {
      await Promise.all(talkers.map(talker => talker.answers(3)))
      await changeUnderTraffic(switched, 'iptables', talkers)
      expect(new Set(chainsOfServices())).toEqual(new Set([prefix]))
      await untilTables(switched, [])
      await changeUnderTraffic(switched, 'nftables', talkers)
      await untilTables(switched, [`table ip ${table}`, `table ip6 ${table}`])
      await switched.daemon.until(() => chainsOfServices().length === 0)
    } finally {
      await Promise.all(talkers.map(talker => talker.close()))
    }
    await expectAllAnswered(clients)
  },
)

test('from nftables to userspace and back: no connection is lost, and none refused', async () => {
  const switched = await rig.start('nftables')
  const clients = rig.startClients()
  const talkers = rig.startTalkers()
  try {
    await Promise.all(talkers.map(talker => talker.answers(3)))
    await changeUnderTraffic(switched, 'userspace', talkers)
    await untilTables(switched, ['table ip kube-proxy-userspace', 'table ip6 kube-proxy-userspace'])
    await changeUnderTraffic(switched, 'nftables', talkers)
    await untilTables(switched, ['table ip kube-proxy', 'table ip6 kube-proxy'])
  } finally {
    await Promise.all(talkers.map(talker => talker.close()))
  }
  await expectAllAnswered(clients)
})

test('userspace, begun anew with other settings: no connection is lost, and none refused', async () => {
  const switched = await rig.start('userspace')
  const clients = rig.startClients()
  const talkers = rig.startTalkers()
  try {
    await Promise.all(talkers.map(talker => talker.answers(3)))
    await beginAnew(switched, 'userspace', { iptables: { masqueradeAll: true } })
    talkers.push(...rig.startTalkers())
    // Listeners of the plane before answer for five seconds more.
    await new Promise(resolve => setTimeout(resolve, 6_000))
    await Promise.all(talkers.map(talker => talker.answers(5)))
  } finally {
    await Promise.all(talkers.map(talker => talker.close()))
  }
  await expectAllAnswered(clients)
})
