import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, test } from 'vitest'
import type { Daemon } from '../support/daemon.ts'
import { eventually } from '../support/patience.ts'
import { NODE_NAME } from '../support/pipeline.ts'
import type { KubeProxyPeer, ProxyConfig } from '../support/reference/kube-proxy-peer.ts'
import { ENDPOINTS, HAS_IPTABLES, HandOver, nft } from './hand-over-rig.ts'
import { bothServed, packetsToBoth, RED, RED_FLAG, RED_POD, redSlice } from './red-service.ts'

/*
 * Two kprobes, one of them with --service-proxy-name, and the real kube-proxy on one node: what an upgrade of kubeadm makes
 * of a node with both (docs/upgrades.md).
 */

/** It writes when something changes, and else never within a test. */
const WHEN_CHANGED = { minSyncPeriod: '10ms', syncPeriod: '1h' }
const KUBE_PROXY: Readonly<Record<'nftables' | 'iptables', ProxyConfig>> = {
  nftables: { nftables: WHEN_CHANGED },
  iptables: { mode: 'iptables', iptables: WHEN_CHANGED },
}
/** kube-proxy has its own ports. */
const MAIN_HEALTH = 20_256
const RED_HEALTH = 30_256
const OTHER_POD = '10.0.1.5'
const CHANGES = 8
/** A change may cost the main kprobe a commit, one for what it leaves behind, and a repair of what kube-proxy wrote. */
const MAIN_COMMITS_MAX = 3 * (1 + CHANGES)
/** kprobe looks each minute, and a process has to be there twice. */
const SEEN_MAX_MS = 600_000

let rig: HandOver

beforeAll(async () => {
  rig = await HandOver.open()
  rig.useIptablesNft()
  for (const object of RED) await rig.plane.api.put(object)
})

afterAll(async () => {
  await rig?.close()
})

beforeEach(() => {
  nft('flush', 'ruleset')
})

afterEach(async () => {
  await rig?.rest()
})

interface Three {
  readonly main: Daemon
  readonly red: Daemon
  readonly peer: KubeProxyPeer
}

function portsFrom(health: number): readonly string[] {
  return [`--healthz-bind-address=127.0.0.1:${health}`, `--metrics-bind-address=127.0.0.1:${health + 1}`]
}

async function startThree(theirs: keyof typeof KUBE_PROXY, ours: string): Promise<Three> {
  const mode = `--proxy-mode=${ours}`
  const main = await rig.startKprobe([mode, ...portsFrom(MAIN_HEALTH)])
  const red = await rig.startKprobe([RED_FLAG, mode, ...portsFrom(RED_HEALTH)])
  return { main, red, peer: await rig.startKubeProxy(KUBE_PROXY[theirs]) }
}

function commits(daemon: Daemon): number {
  return daemon.said('committed').length
}

/** Syncs of kube-proxy in both families. */
async function syncs(peer: KubeProxyPeer): Promise<number> {
  const counts = [
    ...(await peer.metrics()).matchAll(/^kubeproxy_sync_(?:full|partial)_proxy_rules_\S+_count\S* (\d+)$/gm),
  ]
  return counts.reduce((sum, [, count]) => sum + Number(count), 0)
}

/** Gives the Service of red another endpoint, and waits until it is in the kernel. */
async function changeRed({ red }: Three, address: string): Promise<void> {
  await red.loggedAfter('committed', () => rig.plane.api.put(redSlice(address)))
}

/**
 * Resolves when the main kprobe has not written while red has, and kube-proxy has made no sync of its own: it filters
 * Services by the label of their proxy, but no EndpointSlices, and makes a sync for each. Gives the changes of red.
 */
async function calm(three: Three): Promise<number> {
  const { main, peer } = three
  const addresses = [OTHER_POD, RED_POD, OTHER_POD, RED_POD]
  let rounds = 0
  let seen = ''
  const isCalm = async () => {
    rounds++
    await main.caughtUp()
    const commitsBefore = commits(main)
    const syncsBefore = await syncs(peer)
    for (const address of addresses) await changeRed(three, address)
    await main.caughtUp()
    const newCommits = commits(main) - commitsBefore
    const newSyncs = (await syncs(peer)) - syncsBefore
    seen = `${newCommits} commits and ${newSyncs} syncs while red had ${addresses.length} changes`
    return newCommits === 0 && newSyncs <= addresses.length
  }
  await eventually(isCalm, { describe: () => seen })
  return rounds * addresses.length
}

async function pageOf(port: number, path: string): Promise<string> {
  return (await fetch(`http://127.0.0.1:${port}${path}`)).text()
}

async function expectNamed({ main, red }: Three, sign: RegExp): Promise<void> {
  const BESIDE = 'kube-proxy runs on this node beside kprobe'
  await main.logged(BESIDE, 1, SEEN_MAX_MS)
  const signs = expect.arrayContaining([expect.stringMatching(sign)])
  expect(main.said(BESIDE)).toEqual([expect.objectContaining({ level: 'error', signs })])
  expect(await pageOf(MAIN_HEALTH, '/healthz?verbose')).toMatch(
    /^\[-\]kube-proxy failed: runs beside kprobe: .*\(does not decide\)$/m,
  )
  expect(await pageOf(MAIN_HEALTH + 1, '/metrics')).toMatch(/^kprobe_kube_proxy_beside 1$/m)
  await eventually(async () => {
    const path = '/apis/events.k8s.io/v1/events'
    const events = await rig.plane.api.listAt(path, 'events.k8s.io/v1', 'Event')
    return events.some(
      ({ reason, note, regarding }) =>
        reason === 'KubeProxyBeside' &&
        String(note).startsWith('kube-proxy beside kprobe: ') &&
        JSON.stringify(regarding).includes(NODE_NAME),
    )
  }, 'an event of the Node names kube-proxy')
  expect(red.said(BESIDE)).toEqual([])
  expect(await pageOf(RED_HEALTH, '/healthz?verbose')).not.toContain('kube-proxy')
}

describe.skipIf(!HAS_IPTABLES).each([
  { theirs: 'nftables', ours: 'nftables', sign: /^it writes into kprobe's tables \(/ },
  { theirs: 'iptables', ours: 'iptables', sign: /^process kube-proxy \(pid \d+\)$/ },
  { theirs: 'iptables', ours: 'nftables', sign: /^process kube-proxy \(pid \d+\)$/ },
] as const)('two kprobes in $ours mode and kube-proxy in $theirs mode', ({ theirs, ours, sign }) => {
  test('serve what is theirs, do not fight, and kprobe names kube-proxy', async () => {
    const three = await startThree(theirs, ours)
    const { main, red, peer } = three
    for (let change = 0; change < CHANGES; change++) {
      const endpoints = ENDPOINTS.slice(0, 2 + (change % 2))
      const address = change % 2 === 0 ? OTHER_POD : RED_POD
      await rig.setEndpoints(endpoints)
      await changeRed(three, address)
      await expect.poll(() => packetsToBoth(rig), { interval: 200 }).toEqual(bothServed(address, endpoints))
    }
    const changesOfRed = CHANGES + (await calm(three))
    console.log(
      `${commits(main)} commits of the main kprobe, ${await syncs(peer)} syncs of kube-proxy, ${changesOfRed} changes of red`,
    )
    expect(commits(red)).toBe(1 + changesOfRed)
    expect(commits(main)).toBeLessThanOrEqual(MAIN_COMMITS_MAX)
    expect(red.said('repaired foreign changes')).toEqual([])
    await expectNamed(three, sign)
    await peer.stop()
    await rig.setEndpoints(ENDPOINTS)
    await expect.poll(() => packetsToBoth(rig), { interval: 200 }).toEqual(bothServed())
  })
})

if (!HAS_IPTABLES) console.log('skipped: two kprobes and a kube-proxy, as iptables is not installed here')
