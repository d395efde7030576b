import { execFileSync, spawnSync } from 'node:child_process'
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { requireBinaries } from '../support/reference/binaries.ts'
import type { ControlPlane } from '../support/reference/control-plane.ts'
import { parseHelp } from '../support/reference/help-text.ts'
import { KubeProxyPeer } from '../support/reference/kube-proxy-peer.ts'
import { familyLine, parseMetrics } from '../support/reference/metrics-text.ts'
import { changeEndpoint, json, openSightsPlane, sights } from '../support/reference/sights.ts'
import { WRITTEN_FLAGS, WRITTEN_IPVS_FLAGS } from '../support/reference/written-flags.ts'

/*
 * What others can see of kube-proxy, beside packets. The files in golden/ let tests compare with it where it cannot be
 * built; here they are proved to be what it does. UPDATE_GOLDEN=1 writes them anew; `npx biome check --write
 * test/reference`.
 */
const GOLDEN = fileURLToPath(new URL('golden/', import.meta.url))

function expectGolden(name: string, found: string): void {
  if (process.env.UPDATE_GOLDEN !== undefined) writeFileSync(GOLDEN + name, found)
  const golden = readFileSync(GOLDEN + name, 'utf8')
  // How JSON files are laid out is the formatter's business.
  if (name.endsWith('.json')) expect(JSON.parse(found)).toEqual(JSON.parse(golden))
  else expect(found).toBe(golden)
}

function text(lines: readonly string[]): string {
  return `${lines.join('\n')}\n`
}

const { kubeProxy } = requireBinaries()

function help(): string {
  return spawnSync(kubeProxy, ['--help'], { encoding: 'utf8' }).stdout
}

describe('without a cluster', () => {
  test('the flags are those of the golden file', () => {
    const lines = parseHelp(help()).map(({ name, shorthand, type, default: value }) =>
      `--${name}${shorthand === undefined ? '' : ` -${shorthand}`} ${type} ${value}`.trimEnd(),
    )
    expectGolden('flags.txt', text(lines))
  })

  test('the written configuration is that of the golden file', () => {
    const folder = mkdtempSync(join(tmpdir(), 'kprobe-golden-'))
    const written = (args: readonly string[]): string => {
      execFileSync(kubeProxy, [...args, `--write-config-to=${folder}/config`], { stdio: 'ignore' })
      return readFileSync(`${folder}/config`, 'utf8')
    }
    try {
      expectGolden('write-config.yaml', written([]))
      expectGolden('write-config-flags.yaml', written(WRITTEN_FLAGS))
      expectGolden('write-config-ipvs.yaml', written(WRITTEN_IPVS_FLAGS))
    } finally {
      rmSync(folder, { recursive: true })
    }
  })
})

describe('in a cluster', () => {
  let plane: ControlPlane
  let peer: KubeProxyPeer
  let failures = ''

  beforeAll(async () => {
    plane = await openSightsPlane()
    failures = await provokeSyncFailure()
    peer = startPeer()
    await peer.synced()
    let changedMs = Number.NEGATIVE_INFINITY
    await peer.program.until(async () => {
      const metrics = await peer.metrics()
      if (PROGRAMMED.test(metrics) && metrics.includes('sync_partial_proxy_rules')) return true
      // kube-proxy may take a change into a full sync: then another one is needed.
      if (performance.now() - changedMs > AGAIN_MS) {
        changedMs = performance.now()
        await changeEndpoint(plane)
      }
      return false
    }, 30_000)
  })

  afterAll(async () => {
    await peer?.stop()
    await plane?.stop()
  })

  const startPeer = (): KubeProxyPeer =>
    new KubeProxyPeer({ kubeconfig: plane.kubeconfig('proxy'), nodeName: 'test-node' })

  /** The metrics of a kube-proxy that failed: counters of failures are there after the first one only. */
  async function provokeSyncFailure(): Promise<string> {
    const inTheWay = 'add table ip kube-proxy; add set ip kube-proxy service-ips { type ipv4_addr; }'
    execFileSync('nft', [inTheWay])
    const failing = startPeer()
    const metrics = (): Promise<string> => failing.metrics().catch(() => '')
    await failing.program.until(async () => (await metrics()).includes('sync_failures_total{'), 20_000)
    const seen = await metrics()
    await failing.stop()
    execFileSync('nft', ['delete table ip kube-proxy'])
    return seen
  }

  test('what it answers and writes is what the golden files say', async () => {
    for (const [name, seen] of await sights(peer, plane)) expectGolden(name, seen)
  })

  test('metrics are those of the golden file', async () => {
    for (const path of ['/healthz', '/livez']) await peer.health(path)
    const families = parseMetrics(await peer.metrics())
    const failed = parseMetrics(failures).filter(({ name }) => name.includes('failures'))
    const all = new Map([...failed, ...families].map(family => [family.name, family]))
    const lines = [...all.values()].filter(({ name }) => OF_THE_PROXY.test(name)).map(familyLine)
    expectGolden('metrics.txt', text(lines.sort()))
  })

  test('the flags that the help hides are those of the golden file', async () => {
    const shown = new Set(parseHelp(help()).map(({ name }) => name))
    // Each start chooses another separator, so that nobody parses the page.
    const lines = (await peer.metrics('/flagz')).split('\n')
    const names = lines.map(line => /^[a-z][a-z-]*/.exec(line)?.[0] ?? '')
    expectGolden(
      'hidden-flags.txt',
      text(names.filter(name => name !== '' && name !== 'kube-proxy' && !shown.has(name))),
    )
  })

  test('its role is that of the golden file', async () => {
    const name = 'system:node-proxier'
    const role = await plane.api.get('rbac.authorization.k8s.io/v1', 'ClusterRole', { name })
    expectGolden('node-proxier.json', json(role.rules))
  })
})

const AGAIN_MS = 2_000
const PROGRAMMED = /^kubeproxy_network_programming_duration_seconds_count\S* [1-9]/m
const OF_THE_PROXY =
  /^(kubeproxy_|rest_client_|process_|kubernetes_|registered_metrics|disabled_metrics|hidden_metrics)/
