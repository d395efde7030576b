import { execFileSync } from 'node:child_process'
import { setTimeout as sleep } from 'node:timers/promises'
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, test } from 'vitest'
import { generation, savedByTools as saved } from '../faults/kernel.ts'
import type { Daemon } from '../support/daemon.ts'
import { ENDPOINTS, HAS_IPTABLES, HandOver, IPTABLES_MODE, kprobe, nft } from './hand-over-rig.ts'

/*
 * F88 in the iptables mode: kprobe and the real kube-proxy take turns at the same chains, under traffic, beside rules of
 * other agents.
 */
let rig: HandOver

beforeAll(async () => {
  rig = await HandOver.open()
  if (HAS_IPTABLES) rig.useIptablesNft()
})

afterAll(async () => {
  await rig?.close()
})

beforeEach(() => {
  nft('flush', 'ruleset')
  for (const family of ['iptables', 'ip6tables'])
    execFileSync(`${family}-nft-restore`, ['--noflush'], { input: FOREIGN })
})

afterEach(async () => {
  await rig?.rest()
})

/** A CNI's chains and the jumps to them, and kubelet's canary. */
const FOREIGN = `*filter
:CNI-FORWARD - [0:0]
-A FORWARD -m comment --comment "firewall plugin" -j CNI-FORWARD
-A CNI-FORWARD -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
COMMIT
*nat
:CNI-HOSTPORT-MASQ - [0:0]
-A POSTROUTING -m comment --comment "CNI portfwd requiring masquerade" -j CNI-HOSTPORT-MASQ
-A CNI-HOSTPORT-MASQ -m mark --mark 0x2000/0x2000 -j MASQUERADE
COMMIT
*mangle
:KUBE-KUBELET-CANARY - [0:0]
COMMIT
`

const startKprobe = (args: readonly string[] = []): Promise<Daemon> =>
  rig.startKprobe(['--proxy-mode=iptables', ...args])

const CHANGED = ['10.0.1.1:8080', '10.0.1.3:8080']

describe.skipIf(!HAS_IPTABLES)("kube-proxy's iptables mode and ours", () => {
  test('F88: to kprobe, back, and to kprobe again: no chain is written, no request fails, no connection breaks', async () => {
    const first = await rig.startKubeProxy(IPTABLES_MODE)
    const theirs = saved()
    expect(theirs.ours.length).toBeGreaterThan(60)
    const clients = await rig.startClients()
    await clients.work()
    await first.stop()
    const before = await generation()
    const daemon = await startKprobe()
    await clients.work()
    // The record of iptables mode, a table of its own.
    expect(await generation()).toBe(before + 1)
    await daemon.caughtUp()
    expect(daemon.said('committed')).toEqual([])
    expect(saved()).toEqual(theirs)
    await daemon.stop()
    await clients.work()
    const second = await rig.startKubeProxy(IPTABLES_MODE)
    await clients.work()
    expect(saved()).toEqual(theirs)
    await second.stop()
    await startKprobe()
    await clients.work()
    expect(saved()).toEqual(theirs)
    await clients.expectNothingNoticed()
  })

  test('F88: what changed between the two is all that is written', async () => {
    await rig.startKubeProxy(IPTABLES_MODE).then(peer => peer.stop())
    const before = saved()
    await rig.setEndpoints(CHANGED)
    try {
      const daemon = await startKprobe()
      const after = saved()
      expect(daemon.said('committed')).toHaveLength(1)
      expect(after.foreign).toEqual(before.foreign)
      const gone = before.ours.filter(line => !after.ours.includes(line))
      expect(gone.filter(line => !/10\.0\.1\.|KUBE-SEP-/.test(line))).toEqual([])
      await daemon.stop()
      const peer = await rig.startKubeProxy(IPTABLES_MODE)
      expect(saved()).toEqual(after)
      await peer.stop()
    } finally {
      await rig.setEndpoints(ENDPOINTS)
    }
  })

  test('beside a kube-proxy that runs, no request fails, and both come to the same chains', async () => {
    await rig.startKubeProxy(IPTABLES_MODE)
    const clients = await rig.startClients()
    // kube-proxy of a test ends when its ports are taken.
    const ports = ['--healthz-bind-address=127.0.0.1:20256', '--metrics-bind-address=127.0.0.1:20249']
    await startKprobe(ports)
    for (let change = 0; change < 15; change++) {
      await rig.setEndpoints(ENDPOINTS.slice(0, 2 + (change % 2)))
      await sleep(200)
    }
    await rig.setEndpoints(ENDPOINTS)
    await expect
      .poll(() => saved().ours.filter(line => /-j DNAT --to-destination 10\.0\.1\./.test(line)).length)
      .toBe(ENDPOINTS.length)
    await clients.work()
    await clients.expectNoFailure()
  })

  test('a cleanup leaves what is not ours, and what kubelet has as well', async () => {
    const before = saved()
    const daemon = await startKprobe()
    await daemon.stop()
    expect(kprobe('cleanup', '--proxy-mode=iptables').code).toBe(0)
    const { ours, foreign } = saved()
    expect(ours.filter(line => !/KUBE-FIREWALL/.test(line))).toEqual([])
    expect(foreign.filter(line => !/ :(INPUT|OUTPUT|FORWARD|PREROUTING|POSTROUTING) /.test(line))).toEqual(
      before.foreign.filter(line => !/ :(INPUT|OUTPUT|FORWARD|PREROUTING|POSTROUTING) /.test(line)),
    )
  })

  test('from the nftables mode, whose tables go afterwards, under traffic', async () => {
    const nftables = await rig.startKprobe()
    const lasting = await rig.startClients()
    await lasting.work()
    await nftables.stop()
    const daemon = await startKprobe()
    await lasting.work()
    kprobe('cleanup', '--proxy-mode=nftables')
    await lasting.work()
    await daemon.caughtUp()
    expect(daemon.said('repaired foreign changes')).toEqual([])
    await lasting.expectNothingNoticed()
  })
})

if (!HAS_IPTABLES)
  console.log('skipped: the iptables mode beside kube-proxy, as iptables is not installed here')
