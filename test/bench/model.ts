/** Times of the model alone: parse, apply, resolve, and one changed endpoint. Usage: node --experimental-strip-types. */
import { finish } from '../../src/base/steps.ts'
import type { ResolveOptions } from '../../src/model/here.ts'
import { createNamePool } from '../../src/model/names.ts'
import { parseObject } from '../../src/model/parse.ts'
import { isRefusal } from '../../src/model/refusal.ts'
import { resolve } from '../../src/model/resolve.ts'
import { applyEvents, EMPTY_SNAPSHOT, type SourceEvent } from '../../src/model/snapshot.ts'

const SERVICES = Number(process.argv[2] ?? 10_000)
const ENDPOINTS = Number(process.argv[3] ?? 10)
const OPTIONS: ResolveOptions = {
  nodeName: 'node-7',
  serviceProxyName: undefined,
  nodePortSelection: { primary: true, cidrs: [] },
  allowedExternalCidrs: [],
  allowedLoadBalancerCidrs: [],
}

function serviceObject(index: number): unknown {
  const ip = `10.96.${index >> 8}.${index & 255}`
  return {
    apiVersion: 'v1',
    kind: 'Service',
    metadata: {
      namespace: 'bench',
      name: `svc-${index}`,
      uid: `uid-${index}`,
      creationTimestamp: '2026-01-01T00:00:00Z',
    },
    spec: {
      type: 'ClusterIP',
      clusterIP: ip,
      clusterIPs: [ip],
      ipFamilies: ['IPv4'],
      ports: [{ name: 'http', protocol: 'TCP', port: 80, targetPort: 8080 }],
      sessionAffinity: 'None',
      internalTrafficPolicy: 'Cluster',
    },
    status: { loadBalancer: {} },
  }
}

function sliceObject(index: number, first = 0): unknown {
  const endpoints = []
  for (let at = 0; at < ENDPOINTS; at++) {
    const pod = (index * 37 + at * 7919 + first) % 16_000_000
    endpoints.push({
      addresses: [`10.${(pod >> 16) & 255}.${(pod >> 8) & 255}.${pod & 255}`],
      conditions: { ready: true, serving: true, terminating: false },
      nodeName: `node-${pod % 500}`,
      zone: `zone-${pod % 3}`,
      targetRef: {
        kind: 'Pod',
        namespace: 'bench',
        name: `pod-${pod}`,
        uid: `00000000-0000-0000-0000-${pod}`,
      },
    })
  }
  return {
    apiVersion: 'discovery.k8s.io/v1',
    kind: 'EndpointSlice',
    metadata: {
      namespace: 'bench',
      name: `svc-${index}-abcde`,
      labels: { 'kubernetes.io/service-name': `svc-${index}` },
      annotations: { 'endpoints.kubernetes.io/last-change-trigger-time': '2026-01-01T00:00:00Z' },
    },
    addressType: 'IPv4',
    ports: [{ name: 'http', protocol: 'TCP', port: 8080 }],
    endpoints,
  }
}

function timed<T>(name: string, run: () => T): T {
  const start = performance.now()
  const value = run()
  console.log(`${name.padEnd(28)} ${(performance.now() - start).toFixed(2)} ms`)
  return value
}

function parseAll(objects: readonly unknown[]): SourceEvent[] {
  const pool = createNamePool()
  const events: SourceEvent[] = []
  for (const object of objects) {
    const event = parseObject(object, pool)
    if (event !== undefined && !isRefusal(event)) events.push(event)
  }
  return events
}

const text = JSON.stringify(
  Array.from({ length: SERVICES }, (_, index) => [serviceObject(index), sliceObject(index)]).flat(),
)
for (let round = 0; round < 4; round++) {
  console.log(`-- round ${round}: ${SERVICES} Services x ${ENDPOINTS} endpoints`)
  const objects: unknown[] = timed('JSON.parse', () => JSON.parse(text))
  const events = timed('parseObject', () => parseAll(objects))
  const snapshot = timed('applyEvents', () => applyEvents(EMPTY_SNAPSHOT, events))
  const table = timed('resolve, from nothing', () => finish(resolve(OPTIONS, undefined, snapshot)))
  timed('resolve, other zone', () =>
    finish(resolve({ ...OPTIONS, nodeName: 'x' }, { snapshot, table }, snapshot)),
  )
  let now = { snapshot, table }
  timed('1000 changes, each', () => {
    for (let index = 0; index < 1000; index++) {
      const next = applyEvents(now.snapshot, parseAll([sliceObject(index % SERVICES, index + 1)]))
      now = { snapshot: next, table: finish(resolve(OPTIONS, now, next)) }
    }
  })
}
