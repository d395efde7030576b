import { setTimeout as delay } from 'node:timers/promises'
import { afterAll, beforeAll, expect, test } from 'vitest'
import { Lab } from '../support/lab/lab.ts'
import { change, commitAll, compute, openPlane } from '../support/pipeline.ts'
import { LOCAL_IPS, loadScenarios } from '../support/scenario.ts'

let lab: Lab

beforeAll(async () => {
  lab = await Lab.start()
})

afterAll(async () => {
  await lab.close()
})

const PORTS = [{ name: 'http', port: 8080, protocol: 'TCP' }]

const SERVICE = {
  apiVersion: 'v1',
  kind: 'Service',
  metadata: { namespace: 'ns1', name: 'web' },
  spec: {
    type: 'NodePort',
    clusterIP: '172.30.0.41',
    clusterIPs: ['172.30.0.41'],
    ports: [{ name: 'http', port: 80, protocol: 'TCP', nodePort: 30001 }],
  },
}

function slice(addresses: readonly string[]): unknown {
  return {
    apiVersion: 'discovery.k8s.io/v1',
    kind: 'EndpointSlice',
    metadata: { namespace: 'ns1', name: 'web-a', labels: { 'kubernetes.io/service-name': 'web' } },
    addressType: 'IPv4',
    endpoints: addresses.map(address => ({ addresses: [address], nodeName: 'other-node' })),
    ports: PORTS,
  }
}

function addresses(count: number): readonly string[] {
  return Array.from({ length: count }, (_, index) => `10.180.1.${index + 1}`)
}

const DURATION_MS = 1500

/** A packet may read how many endpoints there are before a commit, and the endpoints after it (kernel.md 1d). */
test.each([
  [4, 5],
  [16, 17],
  [1, 2],
])('no connection is lost while a Service flips between %i and %i endpoints', async (few, many) => {
  const surroundings = loadScenarios()[0]?.steps[0]?.objects.slice(0, 2) ?? []
  const servers = await lab.servers(addresses(many).map(address => `${address}:8080`))
  const { client, plane } = openPlane({})
  await plane.cleanup()
  let computed = change(compute({}, LOCAL_IPS), {
    objects: [...surroundings, SERVICE, slice(addresses(many))],
  })
  let held = await commitAll(plane, plane.empty, computed.state)
  const clients = [
    lab.client({ from: 'outside', source: '203.0.113.5', destination: '172.30.0.41', port: 80, rate: 700 }),
    lab.client({
      from: 'outside',
      source: '203.0.113.6',
      destination: '192.168.0.2',
      port: 30001,
      rate: 700,
    }),
    lab.client({ from: 'node', source: '192.168.0.2', destination: '172.30.0.41', port: 80, rate: 700 }),
  ]
  let flips = 0
  for (const end = performance.now() + DURATION_MS; performance.now() < end; flips++) {
    computed = change(computed, { objects: [slice(addresses(flips % 2 === 0 ? few : many))] })
    held = await commitAll(plane, held, computed.state)
    await delay(0)
  }
  const reports = await Promise.all(clients.map(one => one.stop()))
  for (const report of reports) {
    expect(report).toMatchObject({ refused: 0, timeouts: 0, other: 0 })
    expect(report.ok).toBeGreaterThan(100)
    expect(report.endpoints.size).toBe(many)
  }
  expect(flips).toBeGreaterThan(50)
  await Promise.all([servers.close(), client.close()])
})
