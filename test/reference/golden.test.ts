import { execFileSync, spawnSync } from 'node:child_process'
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { hostname, tmpdir } from 'node:os'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { fileURLToPath } from 'node:url'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import type { KubeObject } from '../support/reference/api.ts'
import { requireBinaries } from '../support/reference/binaries.ts'
import { ControlPlane } from '../support/reference/control-plane.ts'
import { parseGates, parseHelp } from '../support/reference/help-text.ts'
import { KubeProxyPeer } from '../support/reference/kube-proxy-peer.ts'
import { LAB_NODE, namespaceObject } from '../support/reference/lab-node.ts'
import { familyLine, parseMetrics } from '../support/reference/metrics-text.ts'
import { WRITTEN_FLAGS } from '../support/reference/written-flags.ts'

/*
 * What others can see of kube-proxy, beside packets. The files in golden/ let tests compare with it where it cannot be
 * built; here they are proved to be what it does. UPDATE_GOLDEN=1 writes them anew; `npx biome check --write test/reference`.
 */
const GOLDEN = fileURLToPath(new URL('golden/', import.meta.url))

function expectGolden(name: string, found: string): void {
  const text = found.endsWith('\n') ? found : `${found}\n`
  if (process.env.UPDATE_GOLDEN !== undefined) writeFileSync(GOLDEN + name, text)
  const golden = readFileSync(GOLDEN + name, 'utf8')
  // How JSON files are laid out is the formatter's business.
  if (name.endsWith('.json')) expect(JSON.parse(text)).toEqual(JSON.parse(golden))
  else expect(text).toBe(golden)
}

const TIME = /"\d{4}-\d\d-\d\dT[\d:.]+Z"/g

function json(value: unknown): string {
  return JSON.stringify(value, undefined, 2).replace(TIME, '"TIME"')
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
    expectGolden('flags.txt', lines.join('\n'))
  })

  test('the feature gates are those of the golden file', () => {
    const lines = parseGates(help()).map(({ name, stage, default: value }) => `${name} ${stage} ${value}`)
    expectGolden('feature-gates.txt', lines.join('\n'))
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
    } finally {
      rmSync(folder, { recursive: true })
    }
  })
})

describe('in a cluster', () => {
  let plane: ControlPlane
  let peer: KubeProxyPeer

  beforeAll(async () => {
    plane = await ControlPlane.start()
    for (const address of ['192.168.0.2/32', '2001:db8::2/128']) {
      execFileSync('ip', ['addr', 'replace', address, 'dev', 'lo'])
    }
    await plane.api.put(LAB_NODE)
    await plane.api.put(namespaceObject('ns1'))
    for (const object of OBJECTS) await plane.api.create(object)
    await provokeSyncFailure()
    peer = startPeer()
    await peer.synced()
    await plane.api.put({
      ...slice('10.180.0.2'),
      metadata: { ...slice('').metadata, annotations: trigger() },
    })
    await peer.program.until(
      async () =>
        /^kubeproxy_network_programming_duration_seconds_count\S* [1-9]/m.test(await peer.metrics()),
      10_000,
    )
  })

  afterAll(async () => {
    await peer?.stop()
    await plane?.stop()
  })

  const startPeer = (): KubeProxyPeer =>
    new KubeProxyPeer({ kubeconfig: plane.kubeconfig('proxy'), nodeName: 'test-node' })

  /** Counters of failures are there after the first one only; the counters of this peer are read before it ends. */
  async function provokeSyncFailure(): Promise<void> {
    const inTheWay = 'add table ip kube-proxy; add set ip kube-proxy service-ips { type ipv4_addr; }'
    execFileSync('nft', [inTheWay])
    const failing = startPeer()
    await failing.program.until(
      async () => (await failing.metrics().catch(() => '')).includes('sync_failures_total{'),
      20_000,
    )
    failures = await failing.metrics()
    await failing.stop()
    execFileSync('nft', ['delete table ip kube-proxy'])
  }
  let failures = ''

  test('health answers are those of the golden files', async () => {
    for (const path of ['healthz', 'livez']) {
      const response = await peer.health(`/${path}`)
      expect(response.status).toBe(200)
      expectGolden(`${path}.json`, json(await response.json()))
      expectGolden(`${path}-headers.txt`, headerLines(response))
    }
  })

  test("a Service's health check port answers as in the golden file", async () => {
    await sleep(200)
    const response = await fetch('http://192.168.0.2:30777/')
    expectGolden('service-health.txt', await response.text())
    expectGolden('service-health-headers.txt', `${response.status}\n${headerLines(response)}`)
  })

  test('metrics are those of the golden file', async () => {
    for (const path of ['/healthz', '/livez']) await peer.health(path)
    const families = parseMetrics(await peer.metrics())
    const failed = parseMetrics(failures).filter(({ name }) => name.includes('failures'))
    const all = new Map([...failed, ...families].map(family => [family.name, family]))
    const lines = [...all.values()].filter(({ name }) => OF_THE_PROXY.test(name)).map(familyLine)
    expectGolden('metrics.txt', lines.sort().join('\n'))
  })

  test('the other pages of the metrics port are those of the golden files', async () => {
    const page = async (path: string): Promise<Response> => fetch(`http://127.0.0.1:10249${path}`)
    const configz: unknown = JSON.parse(await peer.metrics('/configz'))
    expectGolden('configz.json', json(configz).replace(/"kubeconfig": ".*"/, '"kubeconfig": "FILE"'))
    const lines = await Promise.all(
      ['/proxyMode', '/healthz', '/configz', '/metrics', '/metrics/slis', '/nothing'].map(async path => {
        const response = await page(path)
        const body = response.headers.get('content-length') ?? ''
        const words =
          path === '/proxyMode' || path === '/healthz' ? JSON.stringify(await response.text()) : body
        const { headers } = response
        return `${path} ${response.status} ${headers.get('content-type')} ${headers.get('x-content-type-options')} ${words}`
          .replace(/ \d+$/, '')
          .trimEnd()
      }),
    )
    expectGolden('metrics-port.txt', lines.join('\n'))
  })

  test('the flags that the help hides are those of the golden file', async () => {
    const shown = new Set(parseHelp(help()).map(({ name }) => name))
    // Each start chooses another separator, so that nobody parses the page.
    const names = (await peer.metrics('/flagz'))
      .split('\n')
      .map(line => /^[a-z][a-z-]*/.exec(line)?.[0] ?? '')
    const hidden = names.filter(name => name !== '' && name !== 'kube-proxy' && !shown.has(name))
    expectGolden('hidden-flags.txt', hidden.join('\n'))
  })

  test('its event and its role are those of the golden files', async () => {
    const events = await plane.api.send('GET', '/apis/events.k8s.io/v1/events')
    expectGolden('event.json', json(firstEvent(events.body)))
    const role = await plane.api.get('rbac.authorization.k8s.io/v1', 'ClusterRole', {
      name: 'system:node-proxier',
    })
    expectGolden('node-proxier.json', json(role.rules))
  })
})

const OF_THE_PROXY =
  /^(kubeproxy_|rest_client_|process_|kubernetes_|registered_metrics|disabled_metrics|hidden_metrics)/

function headerLines({ headers }: Response): string {
  const kept = [...headers].filter(([name]) => name !== 'date' && name !== 'content-length')
  return kept.map(([name, value]) => `${name}: ${value}`).join('\n')
}

function firstEvent(body: unknown): unknown {
  const list = typeof body === 'object' && body !== null && 'items' in body ? body.items : []
  const [event] = Array.isArray(list) ? list : []
  const { metadata, reportingInstance, ...rest } = event
  const instance = String(reportingInstance).replace(hostname(), 'HOSTNAME')
  return { ...rest, namespace: metadata.namespace, reportingInstance: instance }
}

function trigger(): Record<string, string> {
  return { 'endpoints.kubernetes.io/last-change-trigger-time': new Date().toISOString() }
}

function slice(address: string): KubeObject {
  return {
    apiVersion: 'discovery.k8s.io/v1',
    kind: 'EndpointSlice',
    metadata: { name: 'dns-a', namespace: 'ns1', labels: { 'kubernetes.io/service-name': 'dns' } },
    addressType: 'IPv4',
    ports: [{ name: 'dns', port: 53, protocol: 'UDP' }],
    endpoints: [{ addresses: [address], nodeName: 'test-node' }],
  }
}

const OBJECTS: readonly KubeObject[] = [
  {
    apiVersion: 'v1',
    kind: 'Service',
    metadata: { name: 'dns', namespace: 'ns1' },
    spec: {
      type: 'LoadBalancer',
      externalTrafficPolicy: 'Local',
      ipFamilyPolicy: 'PreferDualStack',
      healthCheckNodePort: 30777,
      ports: [{ name: 'dns', port: 53, protocol: 'UDP', nodePort: 30053 }],
    },
  },
  slice('10.180.0.1'),
]
