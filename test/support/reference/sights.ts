import { execFileSync } from 'node:child_process'
import { hostname } from 'node:os'
import { setTimeout as sleep } from 'node:timers/promises'
import { freshNetns } from '../lab/netns.ts'
import { Patience } from '../patience.ts'
import type { KubeObject } from './api.ts'
import { ControlPlane } from './control-plane.ts'
import { LAB_NODE, namespaceObject } from './lab-node.ts'

/** A proxy that runs in this network namespace, with its usual ports. */
interface SightsPeer {
  metrics(path?: string): Promise<string>
  health(path?: string): Promise<Response>
}

/**
 * Moves this process into a network namespace of its own, with a control plane, a Service that has everything to be seen
 * (UDP, a health check port, a local endpoint), and a node whose addresses are here.
 */
export async function openSightsPlane(): Promise<ControlPlane> {
  freshNetns()
  const plane = await ControlPlane.start()
  for (const address of ['192.168.0.2/32', '2001:db8::2/128']) {
    execFileSync('ip', ['addr', 'replace', address, 'dev', 'lo'])
  }
  await plane.api.put(LAB_NODE)
  await plane.api.put(namespaceObject('ns1'))
  await plane.api.create(SERVICE)
  await plane.api.create(slice('10.180.0.1'))
  return plane
}

/** A change of an endpoint, of now, whose way into the kernel is measured. */
export async function changeEndpoint({ api }: ControlPlane): Promise<void> {
  const changed = slice('10.180.0.2')
  const annotations = { 'endpoints.kubernetes.io/last-change-trigger-time': new Date().toISOString() }
  await api.put({ ...changed, metadata: { ...changed.metadata, annotations } })
}

/** What can be seen of a proxy but its metrics, by the name of the golden file. Times are `TIME`. */
export async function sights(peer: SightsPeer, plane: ControlPlane): Promise<ReadonlyMap<string, string>> {
  const seen = new Map<string, string>()
  for (const path of ['healthz', 'livez']) {
    const response = await peer.health(`/${path}`)
    seen.set(`${path}.json`, json(await response.json()))
    seen.set(`${path}-headers.txt`, headLines(response))
  }
  const response = await fetch('http://192.168.0.2:30777/')
  seen.set('service-health.txt', `${await response.text()}\n`)
  seen.set('service-health-headers.txt', headLines(response))
  const configz: unknown = JSON.parse(await peer.metrics('/configz'))
  seen.set('configz.json', json(configz).replace(/"kubeconfig": ".*"/, '"kubeconfig": "FILE"'))
  seen.set('metrics-port.txt', await metricsPort())
  seen.set('event.json', json(await firstEvent(plane)))
  return seen
}

const PAGES = ['/proxyMode', '/healthz', '/configz', '/metrics', '/metrics/slis', '/nothing']
const SHORT_PAGES = ['/proxyMode', '/healthz']

async function metricsPort(): Promise<string> {
  const lines = PAGES.map(async path => {
    const response = await fetch(`http://127.0.0.1:10249${path}`)
    const { status, headers } = response
    const body = await response.text()
    const words = [
      path,
      String(status),
      headers.get('content-type'),
      headers.get('x-content-type-options'),
      SHORT_PAGES.includes(path) ? JSON.stringify(body) : null,
    ]
    return words.filter(word => word !== null).join(' ')
  })
  return `${(await Promise.all(lines)).join('\n')}\n`
}

function headLines({ status, headers }: Response): string {
  const kept = [...headers].filter(
    ([name]) => !['date', 'content-length', 'connection', 'keep-alive'].includes(name),
  )
  return `${[status, ...kept.map(([name, value]) => `${name}: ${value}`)].join('\n')}\n`
}

const EVENT_MAX_MS = 5_000

/** The first event of a proxy, which does not wait for it to be taken; API servers write events, too. */
async function firstEvent({ api }: ControlPlane): Promise<unknown> {
  for (const patience = new Patience(EVENT_MAX_MS); !patience.isOver; await sleep(50)) {
    const events = await api.listAt('/apis/events.k8s.io/v1/events', 'events.k8s.io/v1', 'Event')
    const event = events.find(({ regarding }) => Object(regarding).kind === 'Node')
    if (event === undefined) continue
    const { metadata, reportingInstance, ...rest } = event
    const instance = String(reportingInstance).replace(hostname(), 'HOSTNAME')
    return { ...rest, namespace: metadata.namespace, reportingInstance: instance }
  }
  return undefined
}

const TIME = /"\d{4}-\d\d-\d\dT[\d:.]+Z"/g

export function json(value: unknown): string {
  return `${JSON.stringify(value, undefined, 2).replace(TIME, '"TIME"')}\n`
}

/** As lines that compare: the keys of JSON sorted, without indentation and commas. */
export function sightLines(name: string, seen: string): readonly string[] {
  if (!name.endsWith('.json')) return seen.trimEnd().split('\n')
  const text = JSON.stringify(sorted(JSON.parse(seen)), undefined, 1)
  return text.split('\n').map(line => line.trim().replace(/,$/, ''))
}

function sorted(value: unknown): unknown {
  if (Array.isArray(value)) return value.map(sorted)
  if (typeof value !== 'object' || value === null) return value
  const entries = Object.entries(value).map(([key, item]) => [key, sorted(item)] as const)
  return Object.fromEntries(entries.sort(([a], [b]) => (a < b ? -1 : 1)))
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

const SERVICE: KubeObject = {
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
}
