import { execFileSync } from 'node:child_process'
import { readFileSync } from 'node:fs'
import { setTimeout as sleep } from 'node:timers/promises'
import { fileURLToPath } from 'node:url'
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, test } from 'vitest'
import { parse } from 'yaml'
import type { KubeObject } from '../support/reference/api.ts'
import { windowText } from './hand-over-clients.ts'
import { ENDPOINTS, HAS_IPTABLES, HandOver, IPTABLES_MODE, kprobe, nft } from './hand-over-rig.ts'

/*
 * F88: from the real kube-proxy to kprobe and back on one node, with real connections all the while. What
 * docs/hand-over.md says stands here.
 */
const DOCUMENT = fileURLToPath(new URL('../../docs/hand-over.md', import.meta.url))

let rig: HandOver

beforeAll(async () => {
  rig = await HandOver.open()
})

afterAll(async () => {
  await rig?.close()
})

beforeEach(() => nft('flush', 'ruleset'))

afterEach(async () => {
  await rig?.rest()
})

function names(kind: 'chain' | 'set' | 'map'): readonly string[] {
  const listing = nft('list', 'table', 'ip', 'kube-proxy')
  return [...listing.matchAll(new RegExp(`^\\t${kind} (\\S+) \\{$`, 'gm'))].map(([, name = '']) => name)
}

describe("from kube-proxy's nftables mode", () => {
  test('F88: to kprobe, back, and to kprobe again: no request fails and no connection breaks', async () => {
    const first = await rig.startKubeProxy()
    const theirs = listing()
    const clients = await rig.startClients()
    await clients.work()
    await first.stop()
    await clients.work()
    const daemon = await rig.startKprobe()
    expect(daemon.said('committed')).toHaveLength(1)
    expect(names('chain').filter(name => /^filter-|\/|-check$/.test(name))).toEqual(['firewall-check'])
    await clients.work()
    await daemon.stop()
    await clients.work()
    const second = await rig.startKubeProxy()
    await clients.work()
    // kube-proxy wrote its own beside ours.
    expect(names('map')).toEqual(expect.arrayContaining(['frontends', 'service-ips']))
    const cleaned = kprobe('cleanup').out
    expect(cleaned).toMatch(
      /^removed kprobe's objects in table ip kube-proxy, which is kube-proxy's now: \d+ chains, 10 sets$/m,
    )
    expect(cleaned).toMatch(/^left by kube-proxy: table ip kube-proxy of its nftables mode /m)
    await clients.work()
    // Its own tables again, but for the comments and sizes of what it went on with.
    expect(listing()).toEqual(theirs)
    await second.stop()
    await rig.startKprobe()
    expect(names('chain').filter(name => /^filter-|\//.test(name))).toEqual([])
    await clients.work()
    await clients.expectNothingNoticed()
  })

  test("back in kube-proxy's hands, a table has room for more Services only after a cleanup", async () => {
    await rig.startKprobe().then(daemon => daemon.stop())
    const peer = await rig.startKubeProxy()
    const many = Array.from({ length: MANY_SERVICES }, (_, i) => plainService(`many-${i}`))
    await rig.plane.api.each(many, object => rig.plane.api.put(object))
    try {
      await expect.poll(() => peer.program.output(), { interval: 200 }).toContain('nftables sync failed')
      expect(clusterIpCount()).toBeLessThan(MANY_SERVICES)
      expect(kprobe('cleanup').code).toBe(0)
      // It tries again within its syncPeriod of 30 s.
      await expect.poll(clusterIpCount, { interval: 200 }).toBeGreaterThan(MANY_SERVICES)
    } finally {
      await rig.plane.api.each(many, ({ metadata: { namespace = '', name } }) =>
        rig.plane.api.remove('v1', 'Service', { namespace, name }),
      )
    }
  })

  test('beside a kube-proxy that runs, no request fails, and the log names who else writes', async () => {
    const peer = await rig.startKubeProxy()
    const clients = await rig.startClients()
    const daemon = await rig.startKprobe()
    for (let change = 0; change < 15; change++) {
      await rig.setEndpoints(ENDPOINTS.slice(0, 2 + (change % 2)))
      await sleep(200)
    }
    console.log(`both at once: ${windowText(await clients.stop())}`)
    await clients.expectNoFailure()
    const repairs = await daemon.logged("repaired foreign changes to kprobe's tables", 4)
    expect(daemon.said('kube-proxy runs on this node beside kprobe')).toHaveLength(1)
    // kube-proxy writes through children of its own.
    expect(repairs.map(({ process }) => process)).toContainEqual(expect.stringMatching(/^nft \(pid \d+\)$/))
    // Its ports are taken, which stops nothing; kprobe listens as soon as they are free.
    await daemon.caughtUp()
    expect(daemon.said('metrics: listening')).toEqual([])
    await peer.stop()
    await daemon.logged('metrics: listening')
    await rig.expectGood()
  })

  test('a kube-proxy that ran beside kprobe goes on once kprobe has stopped', async () => {
    await rig.startKubeProxy()
    const daemon = await rig.startKprobe()
    await daemon.caughtUp()
    await daemon.stop()
    const before = clusterIpCount()
    await rig.plane.api.put(plainService('later'))
    // Its sync of changes fails, since kprobe removed its maps: it writes everything within its syncPeriod of 30 s.
    await expect.poll(clusterIpCount, { interval: 200, timeout: 60_000 }).toBe(before + 1)
    await rig.plane.api.remove('v1', 'Service', { namespace: 'ns', name: 'later' })
    await rig.expectGood()
  })

  test('with a cleanup between the two there is a window, as long as kube-proxy takes to start', async () => {
    await rig.startKprobe().then(daemon => daemon.stop())
    const clients = await rig.startClients()
    await clients.work()
    expect(kprobe('cleanup').code).toBe(0)
    const peer = await rig.startKubeProxy()
    await clients.work()
    console.log(`cleanup, then kube-proxy: ${windowText(await clients.stop())}`)
    expect(peer.program.hasExited).toBe(false)
    expect(names('map')).not.toContain('frontends')
    await rig.expectGood()
  })
})

/** The patch that docs/hand-over.md gives, as it stands there. */
const PATCH: unknown = parse(
  /```yaml\n# kube-proxy-affinity\.yaml\n([\s\S]*?)```/.exec(readFileSync(DOCUMENT, 'utf8'))?.[1] ?? '',
)

test("the documented patch keeps kubeadm's kube-proxy off the nodes with the label", async () => {
  const path = '/apis/apps/v1/namespaces/kube-system/daemonsets/kube-proxy'
  await rig.plane.api.put(KUBEADM_DAEMON_SET)
  const { status, body } = await rig.plane.api.send(
    'PATCH',
    path,
    PATCH,
    'application/strategic-merge-patch+json',
  )
  expect(status).toBe(200)
  const terms = [{ matchExpressions: [{ key: 'kprobe.io/proxy', operator: 'NotIn', values: ['kprobe'] }] }]
  expect(body).toMatchObject({
    spec: {
      template: {
        spec: {
          affinity: {
            nodeAffinity: { requiredDuringSchedulingIgnoredDuringExecution: { nodeSelectorTerms: terms } },
          },
          nodeSelector: { 'kubernetes.io/os': 'linux' },
          containers: [{ name: 'kube-proxy', image: 'kube-proxy' }],
        },
      },
    },
  })
})

const LABELS = { 'k8s-app': 'kube-proxy' }

/** The fields of kubeadm's that count here. */
const KUBEADM_DAEMON_SET: KubeObject = {
  apiVersion: 'apps/v1',
  kind: 'DaemonSet',
  metadata: { namespace: 'kube-system', name: 'kube-proxy', labels: LABELS },
  spec: {
    selector: { matchLabels: LABELS },
    template: {
      metadata: { labels: LABELS },
      spec: {
        hostNetwork: true,
        nodeSelector: { 'kubernetes.io/os': 'linux' },
        tolerations: [{ operator: 'Exists' }],
        containers: [{ name: 'kube-proxy', image: 'kube-proxy' }],
      },
    },
  },
}

/** More than the least size of our set of ClusterIPs. */
const MANY_SERVICES = 1_100

function clusterIpCount(): number {
  return nft('list', 'set', 'ip', 'kube-proxy', 'cluster-ips').match(/172\.30\./g)?.length ?? 0
}

function plainService(name: string): KubeObject {
  const ports = [{ name: 'http', port: 80, protocol: 'TCP' }]
  return { apiVersion: 'v1', kind: 'Service', metadata: { namespace: 'ns', name }, spec: { ports } }
}

/** What the table of one family holds, without what may differ in what kube-proxy goes on with. */
function listing(): readonly string[] {
  return (
    nft('--stateless', 'list', 'table', 'ip', 'kube-proxy')
      .split('\n')
      .filter(
        line =>
          !/^\t(\tsize \d+|comment .*|\tcomment "(Active ClusterIPs|IPs that accept NodePort traffic)")$/.test(
            line,
          ),
      )
      // kube-proxy goes on with sets that we declared: nft names the type of their keys in other words.
      .map(line => line.replace('typeof ip daddr', 'type ipv4_addr'))
      .sort()
  )
}

if (!HAS_IPTABLES) console.log('skipped: kube-proxy in iptables mode, as iptables is not installed here')

/** Connections that kube-proxy's rules have translated so far. */
function translatedByIptables(): number {
  const saved = execFileSync('iptables-nft-save', ['--counters', '-t', 'nat'], { encoding: 'utf8' })
  const counts = [...saved.matchAll(/^\[(\d+):\d+\] -A KUBE-SEP-\S+ .* -j DNAT/gm)]
  return counts.reduce((sum, [, packets]) => sum + Number(packets), 0)
}

describe.skipIf(!HAS_IPTABLES)("from kube-proxy's iptables mode", () => {
  beforeAll(() => rig.useIptablesNft())

  test('F88: kprobe translates from its first commit on, beside rules that are left, and after their removal', async () => {
    const first = await rig.startKubeProxy(IPTABLES_MODE)
    const clients = await rig.startClients()
    await clients.work()
    await first.stop()
    await clients.work()
    expect(translatedByIptables()).toBeGreaterThan(100)
    const daemon = await rig.startKprobe()
    await clients.work()
    // Of chains with equal priority the one that was registered last comes first, and the first translation counts.
    const before = translatedByIptables()
    await clients.work()
    expect(translatedByIptables()).toBe(before)
    const { code, out } = kprobe('cleanup', '--leftovers-of=kube-proxy')
    expect(code).toBe(0)
    expect(out).toMatch(/^removed \d+ chains and \d+ rules that led to them in table ip nat$/m)
    expect(execFileSync('iptables-nft-save', { encoding: 'utf8' })).not.toMatch(/KUBE-(?!FIREWALL)/)
    await clients.work()
    await daemon.caughtUp()
    expect(daemon.said('repaired foreign changes')).toEqual([])
    await clients.expectNothingNoticed()
  })

  test('on the way back kube-proxy deletes our tables as it starts: there is a window until it has synced', async () => {
    await rig.startKprobe().then(daemon => daemon.stop())
    const clients = await rig.startClients()
    await clients.work()
    await rig.startKubeProxy(IPTABLES_MODE)
    await clients.work()
    console.log(`kube-proxy in iptables mode after kprobe: ${windowText(await clients.stop())}`)
    expect(nft('list', 'tables')).not.toContain('kube-proxy')
    await rig.expectGood()
  })

  test('on the way back with kprobe still at work, the window is what kprobe takes to repair its tables', async () => {
    // kube-proxy of a test ends when its ports are taken.
    const ports = ['--healthz-bind-address=127.0.0.1:20256', '--metrics-bind-address=127.0.0.1:20249']
    const daemon = await rig.startKprobe(ports)
    const clients = await rig.startClients()
    await clients.work()
    await rig.startKubeProxy(IPTABLES_MODE)
    await clients.work()
    await daemon.stop()
    await clients.work()
    expect(kprobe('cleanup').out).toMatch(
      /^removed table ip kube-proxy\nremoved table ip6 kube-proxy\nleft by kube-proxy: /,
    )
    await clients.work()
    console.log(`kube-proxy in iptables mode beside kprobe: ${windowText(await clients.stop())}`)
    expect(daemon.said('repaired foreign changes').length).toBeGreaterThanOrEqual(1)
    expect(nft('list', 'tables')).not.toContain('kube-proxy')
    await rig.expectGood()
  })
})
