import type { V1EndpointSlice, V1Node, V1Service, V1ServiceCIDR } from '@kubernetes/client-node'
import { expect, it } from 'vitest'
import { formatCidr, formatIp } from '../../../src/base/ip.ts'
import { parseObject } from '../../../src/model/parse.ts'
import type { SourceEvent } from '../../../src/model/snapshot.ts'

/*
 * Every field that we read, spelled as the official types spell it: a field of ours that is named otherwise would read
 * as absent, and one that the API does not have would not compile here.
 */

/** As it comes over the wire. */
function read(object: V1Service | V1EndpointSlice | V1Node | V1ServiceCIDR): SourceEvent {
  const event = parseObject(JSON.parse(JSON.stringify(object)))
  if (event === undefined || !('kind' in event)) throw new Error(`refused: ${JSON.stringify(event)}`)
  return event
}

it('reads each field of a Service under its official name', () => {
  const service: V1Service = {
    apiVersion: 'v1',
    kind: 'Service',
    metadata: {
      name: 'web',
      namespace: 'shop',
      uid: 'u1',
      creationTimestamp: new Date('2026-01-02T03:04:05Z'),
      labels: { 'service.kubernetes.io/service-proxy-name': 'other' },
    },
    spec: {
      type: 'LoadBalancer',
      clusterIP: '10.96.0.1',
      clusterIPs: ['10.96.0.1', 'fd00::1'],
      ipFamilies: ['IPv4', 'IPv6'],
      ports: [{ name: 'http', port: 80, protocol: 'TCP', nodePort: 30080 }],
      externalIPs: ['203.0.113.1'],
      loadBalancerSourceRanges: ['198.51.100.0/24'],
      internalTrafficPolicy: 'Local',
      externalTrafficPolicy: 'Local',
      healthCheckNodePort: 31000,
      sessionAffinity: 'ClientIP',
      sessionAffinityConfig: { clientIP: { timeoutSeconds: 60 } },
    },
    status: { loadBalancer: { ingress: [{ ip: '203.0.113.2', ipMode: 'VIP' }] } },
  }
  const { kind, value } = read(service)
  if (kind !== 'Service' || value === undefined) throw new Error('not a Service')
  expect(value.refusals).toEqual([])
  expect(value.clusterIps.map(formatIp)).toEqual(['10.96.0.1', 'fd00::1'])
  expect(value.externalIps.map(formatIp)).toEqual(['203.0.113.1'])
  expect(value.loadBalancerIps.map(formatIp)).toEqual(['203.0.113.2'])
  expect(value.sourceRanges.map(formatCidr)).toEqual(['198.51.100.0/24'])
  expect(value).toMatchObject({
    key: 'shop/web',
    uid: 'u1',
    type: 'LoadBalancer',
    ports: [{ name: 'http', port: 80, protocol: 'TCP', nodePort: 30080 }],
    internalTrafficPolicy: 'Local',
    externalTrafficPolicy: 'Local',
    affinityTimeoutS: 60,
    proxyName: 'other',
  })
  expect(value.creationTimestamp).toContain('2026-01-02T03:04:05')
})

it('reads each field of an EndpointSlice under its official name', () => {
  const slice: V1EndpointSlice = {
    apiVersion: 'discovery.k8s.io/v1',
    kind: 'EndpointSlice',
    metadata: { name: 'web-1', namespace: 'shop', labels: { 'kubernetes.io/service-name': 'web' } },
    addressType: 'IPv4',
    ports: [{ name: 'http', port: 8080, protocol: 'UDP' }],
    endpoints: [
      {
        addresses: ['10.244.0.1'],
        conditions: { ready: false, serving: true, terminating: true },
        nodeName: 'n1',
        hints: { forZones: [{ name: 'z1' }], forNodes: [{ name: 'n1' }] },
        targetRef: { uid: 'p1' },
      },
    ],
  }
  const { kind, value } = read(slice)
  if (kind !== 'EndpointSlice' || value === undefined) throw new Error('not an EndpointSlice')
  expect(value.refusals).toEqual([])
  expect(value).toMatchObject({
    key: 'shop/web-1',
    service: 'shop/web',
    family: 'IPv4',
    ports: [{ name: 'http', port: 8080, protocol: 'UDP' }],
    endpoints: [
      {
        traits: {
          nodeName: 'n1',
          conditions: { ready: false, serving: true, terminating: true },
          hints: { forZones: ['z1'], forNodes: ['n1'] },
        },
      },
    ],
  })
})

it('reads each field of a Node and of a ServiceCIDR under its official name', () => {
  const node: V1Node = {
    apiVersion: 'v1',
    kind: 'Node',
    metadata: { name: 'n1', labels: { 'topology.kubernetes.io/zone': 'z1' } },
    spec: { podCIDR: '10.244.0.0/24', podCIDRs: ['10.244.0.0/24'] },
    status: { addresses: [{ type: 'InternalIP', address: '192.0.2.1' }] },
  }
  const read1 = read(node)
  if (read1.kind !== 'Node' || read1.value === undefined) throw new Error('not a Node')
  expect(read1.value).toMatchObject({ name: 'n1', zone: 'z1' })
  expect(read1.value.ips.map(formatIp)).toEqual(['192.0.2.1'])
  expect(read1.value.podCidrs.map(formatCidr)).toEqual(['10.244.0.0/24'])

  const cidr: V1ServiceCIDR = {
    apiVersion: 'networking.k8s.io/v1',
    kind: 'ServiceCIDR',
    metadata: { name: 'kubernetes' },
    spec: { cidrs: ['10.96.0.0/16'] },
  }
  const read2 = read(cidr)
  if (read2.kind !== 'ServiceCIDR' || read2.value === undefined) throw new Error('not a ServiceCIDR')
  expect(read2.value.map(formatCidr)).toEqual(['10.96.0.0/16'])
})
