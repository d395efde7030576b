import { describe, expect, it } from 'vitest'
import { formatCidr } from '../../../src/base/ip.ts'
import { identityOf, isRefusal, type Refusal } from '../../../src/model/fields.ts'
import { parseService } from '../../../src/model/parse-service.ts'
import type { Service } from '../../../src/model/service.ts'
import { ip } from '../../support/addresses.ts'
import { type Fields, refusalLines, service, texts } from './objects.ts'

function parsed(object: Fields): Service {
  const value = parseService(identityOf('Service', object))
  if (isRefusal(value)) throw new Error(JSON.stringify(value))
  return value
}

function refused(object: Fields): Refusal {
  const value = parseService(identityOf('Service', object))
  if (!isRefusal(value)) throw new Error('was accepted')
  return value
}

const web = (spec: Fields, rest: { metadata?: Fields; status?: Fields } = {}) =>
  parsed(service('web', spec, rest))
const ingress = (...entries: unknown[]) => ({ status: { loadBalancer: { ingress: entries } } })

describe('parseService', () => {
  it('KEP-5311: takes a name that begins with a digit, and none that ends in a hyphen', () => {
    const named = (name: string) => ({ ...service('web', {}), metadata: { namespace: 'ns', name } })
    expect(parsed(named('1st-web')).key).toBe('ns/1st-web')
    expect(refused(named('1st-')).field).toBe('metadata.name')
  })

  it('reads a plain Service as the API server stores it', () => {
    const object = service(
      'web',
      {
        type: 'LoadBalancer',
        clusterIP: '10.96.0.1',
        clusterIPs: ['10.96.0.1', 'fd00:96::1'],
        ipFamilies: ['IPv4', 'IPv6'],
        ports: [
          { name: 'http', protocol: 'TCP', port: 80, targetPort: 'web', nodePort: 30080 },
          { name: 'dns', protocol: 'UDP', port: 53, targetPort: 53, nodePort: 30053 },
        ],
        externalIPs: ['192.0.2.1', '2001:db8::1', '192.0.2.1'],
        loadBalancerSourceRanges: [' 10.1.2.3/8 ', '10.0.0.0/9', 'fd00::/8'],
        externalTrafficPolicy: 'Local',
        internalTrafficPolicy: 'Cluster',
        healthCheckNodePort: 31000,
        sessionAffinity: 'ClientIP',
        sessionAffinityConfig: { clientIP: { timeoutSeconds: 60 } },
      },
      {
        metadata: { uid: 'u1', creationTimestamp: '2026-01-01T00:00:00Z' },
        ...ingress({ ip: '198.51.100.1', ipMode: 'VIP' }),
      },
    )
    const value = parsed(object)
    expect(value).toEqual({
      key: 'ns/web',
      uid: 'u1',
      creationTimestamp: '2026-01-01T00:00:00Z',
      type: 'LoadBalancer',
      clusterIps: [ip('10.96.0.1'), ip('fd00:96::1')],
      ports: [
        { name: 'http', protocol: 'TCP', port: 80, nodePort: 30080 },
        { name: 'dns', protocol: 'UDP', port: 53, nodePort: 30053 },
      ],
      externalIps: [ip('192.0.2.1'), ip('2001:db8::1')],
      loadBalancerIps: [ip('198.51.100.1')],
      sourceRanges: value.sourceRanges,
      writtenRanges: value.writtenRanges,
      internalTrafficPolicy: 'Cluster',
      externalTrafficPolicy: 'Local',
      affinityTimeoutS: 60,
      healthCheckNodePort: 31000,
      proxyName: undefined,
      refusals: [],
    })
    expect(value.sourceRanges.map(formatCidr)).toEqual(['10.0.0.0/8', 'fd00::/8'])
    expect(value.writtenRanges.map(formatCidr)).toEqual(['10.0.0.0/8', '10.0.0.0/9', 'fd00::/8'])
  })

  it('fills in what the API server would', () => {
    const object = {
      metadata: { name: 'web' },
      spec: { clusterIP: '10.96.0.1', ports: [{ port: 80 }], sessionAffinity: 'ClientIP' },
    }
    expect(parsed(object)).toMatchObject({
      key: 'default/web',
      uid: '',
      creationTimestamp: '',
      type: 'ClusterIP',
      ports: [{ name: '', protocol: 'TCP', port: 80, nodePort: 0 }],
      internalTrafficPolicy: 'Cluster',
      externalTrafficPolicy: 'Cluster',
      affinityTimeoutS: 10_800,
    })
  })

  it.each([
    ['None', { clusterIP: 'None' }],
    ['the empty string', { clusterIP: '' }],
    ['absent', { clusterIP: undefined }],
    ['None in the plural', { clusterIP: undefined, clusterIPs: ['None'] }],
    ['there, but the type is ExternalName', { type: 'ExternalName', externalName: 'example.com' }],
  ])('has no addresses and no complaints when the ClusterIP is %s', (_, spec) => {
    const value = web(
      { ...spec, externalIPs: ['127.0.0.1'], ports: [{ port: 0 }] },
      ingress({ ip: '192.0.2.1' }),
    )
    expect(value).toMatchObject({ clusterIps: [], externalIps: [], loadBalancerIps: [], refusals: [] })
  })

  it.each([
    ['2026-01-01T00:00:00Z', '2026-01-01T00:00:00Z'],
    ['2026-01-01T02:00:00+02:00', '2026-01-01T00:00:00Z'],
    ['soon', ''],
    [null, ''],
    // F144: what sorts before every other time, and what is none.
    ['+275760-09-13T00:00:00Z', ''],
    ['-000001-01-01T00:00:00Z', ''],
    ['1520-05-27T03:35]]]Z', ''],
  ])('reads the creation time %s as %j', (creationTimestamp, expected) => {
    expect(web({}, { metadata: { creationTimestamp } }).creationTimestamp).toBe(expected)
  })

  it('takes load-balancer addresses by their mode, and hostnames and nothing for nothing (I-04)', () => {
    const entries = [
      { hostname: 'a.example' },
      {},
      { ip: '' },
      { ip: null },
      { ip: '192.0.2.1' },
      { ip: '192.0.2.2', ipMode: 'VIP' },
      { ip: '192.0.2.3', ipMode: 'Proxy' },
    ]
    const value = web({ type: 'LoadBalancer' }, ingress(...entries))
    expect(texts(value.loadBalancerIps)).toEqual(['192.0.2.1', '192.0.2.2'])
    expect(value.refusals).toEqual([])
  })

  it.each([
    ['ClusterIP', {}, 'Cluster'],
    ['ClusterIP', { externalIPs: ['192.0.2.1'] }, 'Local'],
    ['NodePort', {}, 'Local'],
    ['LoadBalancer', {}, 'Local'],
  ])('of type %s with %j has externalTrafficPolicy %s when Local is asked for', (type, spec, policy) => {
    expect(web({ type, externalTrafficPolicy: 'Local', ...spec }).externalTrafficPolicy).toBe(policy)
  })

  it.each([
    ['LoadBalancer', 'Local', 31000],
    ['LoadBalancer', 'Cluster', 0],
    ['NodePort', 'Local', 0],
  ])('of type %s with policy %s has health check port %i', (type, externalTrafficPolicy, expected) => {
    expect(web({ type, externalTrafficPolicy, healthCheckNodePort: 31000 }).healthCheckNodePort).toBe(
      expected,
    )
  })
})

describe('parseService refuses the smallest unit', () => {
  const LB = { type: 'LoadBalancer' }
  it.each<[Fields, { status?: Fields }, string]>([
    [
      { clusterIPs: ['10.96.0.1', '10.96.0.2'] },
      {},
      'spec.clusterIPs[1] = 10.96.0.2: a second IPv4 address; a Service has one per family',
    ],
    [
      { clusterIPs: ['10.96.0.1', 'fd00::1'], ipFamilies: ['IPv4', 'IPv4'] },
      {},
      'spec.clusterIPs[1] = fd00::1: an IPv6 address where an IPv4 one belongs',
    ],
    [
      { clusterIPs: ['10.96.0.1', 'x'] },
      {},
      'spec.clusterIPs[1] = x: not an IP address; write it like 192.0.2.1 or 2001:db8::1',
    ],
    [{ type: 'Banana' }, {}, 'spec.type = Banana: not a type of Service; using ClusterIP'],
    [
      { ports: [{ port: 80 }, { name: 'a', port: 0 }] },
      {},
      'spec.ports[1].port = 0: not a port; whole numbers from 1 to 65535 are accepted',
    ],
    [
      { ports: [{ port: 80 }, { name: 'a', port: 65536 }] },
      {},
      'spec.ports[1].port = 65536: not a port; whole numbers from 1 to 65535 are accepted',
    ],
    [
      { ports: [{ port: 80 }, { name: 'a', port: '81' }] },
      {},
      'spec.ports[1].port = "81": a quoted string, and not a port; whole numbers from 1 to 65535 are accepted',
    ],
    [
      { ports: [{ port: 80 }, { name: 'a', port: 1.5 }] },
      {},
      'spec.ports[1].port = 1.5: not a port; whole numbers from 1 to 65535 are accepted',
    ],
    [
      { ports: [{ port: 80 }, { name: 'a', port: 81, protocol: 'ICMP' }] },
      {},
      'spec.ports[1].protocol = ICMP: not a protocol of Services; TCP, UDP and SCTP are accepted',
    ],
    [
      { ports: [{ port: 80 }, { name: 'A"\n', port: 81 }] },
      {},
      'spec.ports[1].name = A\\u0022\\u000a: not a DNS label; 1 to 63 lower-case letters, digits and inner hyphens are accepted',
    ],
    [
      { ports: [{ port: 80 }, { port: 81 }] },
      {},
      'spec.ports[1].name = : the name of an earlier port with the same protocol',
    ],
    [{ ports: [{ port: 80 }, 'x'] }, {}, 'spec.ports[1] = x: not an object'],
    [
      { ports: [{ port: 80, nodePort: -1 }] },
      {},
      'spec.ports[0].nodePort = -1: not a port; whole numbers from 1 to 65535 are accepted',
    ],
    [
      { externalIPs: ['127.0.0.1'] },
      {},
      'spec.externalIPs[0] = 127.0.0.1: a loopback address, which every node has for itself',
    ],
    [
      { externalIPs: ['192.0.2.1', '0.0.0.0'] },
      {},
      'spec.externalIPs[1] = 0.0.0.0: the unspecified address, which stands for every address',
    ],
    [
      { externalIPs: ['169.254.169.254'] },
      {},
      'spec.externalIPs[0] = 169.254.169.254: a link-local address, which belongs to the network this node is on (or its cloud metadata)',
    ],
    [
      { externalIPs: ['224.0.0.1'] },
      {},
      'spec.externalIPs[0] = 224.0.0.1: a multicast address; Services have unicast addresses',
    ],
    [
      { externalIPs: ['255.255.255.255'] },
      {},
      'spec.externalIPs[0] = 255.255.255.255: the broadcast address; Services have unicast addresses',
    ],
    [
      { externalIPs: ['::ffff:192.0.2.1'] },
      {},
      'spec.externalIPs[0] = ::ffff:192.0.2.1: an IPv4-mapped IPv6 address, which programs read as either family; write plain IPv4',
    ],
    [
      { externalIPs: ['fd00::1'] },
      {},
      'spec.externalIPs[0] = fd00::1: an IPv6 address of a Service that has no IPv6 ClusterIP',
    ],
    [
      { externalIPs: ['fe80::1%eth0'] },
      {},
      'spec.externalIPs[0] = fe80::1%eth0: an IP address with a zone, which has no meaning on other nodes; omit the zone',
    ],
    [{ externalIPs: 7 }, {}, 'spec.externalIPs = 7: not a list; ignored'],
    [
      LB,
      ingress({ ip: '127.0.0.1' }),
      'status.loadBalancer.ingress[0].ip = 127.0.0.1: a loopback address, which every node has for itself',
    ],
    [
      LB,
      ingress({ ip: '192.0.2.1', ipMode: 'Tunnel' }),
      'status.loadBalancer.ingress[0].ipMode = Tunnel: not a mode; VIP and Proxy are accepted, using Proxy',
    ],
    [LB, ingress(5), 'status.loadBalancer.ingress[0] = 5: not an object'],
    [
      { loadBalancerSourceRanges: ['10.0.0.0/8', '10.0.0.1'] },
      {},
      'spec.loadBalancerSourceRanges[1] = 10.0.0.1: not a CIDR; write it like 192.0.2.0/24 or 2001:db8::/32',
    ],
    [
      { loadBalancerSourceRanges: ['10.0.0.0/8', '10.0.0.0/33'] },
      {},
      'spec.loadBalancerSourceRanges[1] = 10.0.0.0/33: not a CIDR: the prefix length must be 0 to 32',
    ],
    [
      { loadBalancerSourceRanges: ['10.0.0.0/8', '::ffff:10.0.0.0/104'] },
      {},
      'spec.loadBalancerSourceRanges[1] = ::ffff:10.0.0.0/104: a prefix of IPv4-mapped IPv6 addresses, which programs read as either family; write plain IPv4',
    ],
    [
      { internalTrafficPolicy: 'Near' },
      {},
      'spec.internalTrafficPolicy = Near: not a traffic policy; Cluster and Local are accepted; using Cluster',
    ],
    [
      { externalTrafficPolicy: 'Near' },
      {},
      'spec.externalTrafficPolicy = Near: not a traffic policy; Cluster and Local are accepted; using Cluster',
    ],
    [
      { sessionAffinity: 'Cookie' },
      {},
      'spec.sessionAffinity = Cookie: not an affinity; None and ClientIP are accepted; using None',
    ],
    [
      { sessionAffinity: 'ClientIP', sessionAffinityConfig: { clientIP: { timeoutSeconds: 0 } } },
      {},
      'spec.sessionAffinityConfig.clientIP.timeoutSeconds = 0: not a timeout; 1 to 86400 seconds are accepted; using 10800',
    ],
    [
      { sessionAffinity: 'ClientIP', sessionAffinityConfig: { clientIP: { timeoutSeconds: 86401 } } },
      {},
      'spec.sessionAffinityConfig.clientIP.timeoutSeconds = 86401: not a timeout; 1 to 86400 seconds are accepted; using 10800',
    ],
  ])('of %j %j', (spec, rest, line) => {
    const value = web(spec, rest)
    expect(refusalLines(value)).toEqual([`Service ns/web: ${line}`])
    expect(value.clusterIps[0]).toBe(ip('10.96.0.1'))
    expect(value.ports[0]).toMatchObject({ name: '', port: 80 })
  })

  it('and keeps the good addresses between bad ones', () => {
    const value = web({ externalIPs: ['127.0.0.1', '192.0.2.1', 'x', '010.000.000.001', 7] })
    expect(texts(value.externalIps)).toEqual(['192.0.2.1', '10.0.0.1'])
    expect(value.refusals.map(its => its.field)).toEqual([
      'spec.externalIPs[0]',
      'spec.externalIPs[2]',
      'spec.externalIPs[4]',
    ])
  })

  it('leaves a load-balancer address out rather than open it to everyone when no range of its family is readable', () => {
    const value = web(
      {
        type: 'LoadBalancer',
        clusterIPs: ['10.96.0.1', 'fd00::1'],
        loadBalancerSourceRanges: ['10.0.0.0/40'],
      },
      ingress({ ip: '192.0.2.1' }, { ip: '2001:db8::1' }),
    )
    expect(texts(value.loadBalancerIps)).toEqual(['2001:db8::1'])
    expect(refusalLines(value)[1]).toBe(
      'Service ns/web: status.loadBalancer.ingress = 192.0.2.1: ignored: no IPv4 source range is valid, so the address would be open to all clients',
    )
  })
})

describe('parseService refuses the whole object', () => {
  it.each<[Fields, Refusal]>([
    [
      {},
      {
        object: 'Service default/nothing',
        field: 'metadata.name',
        value: 'nothing',
        reason: expect.stringContaining('not a DNS label'),
      },
    ],
    [
      { metadata: { namespace: 'ns', name: 'a\n"\u202e' } },
      {
        object: 'Service ns/a\\u000a\\u0022\\u202e',
        field: 'metadata.name',
        value: 'a\\u000a\\u0022\\u202e',
        reason: expect.stringContaining('not a DNS label'),
      },
    ],
    [
      { metadata: { namespace: 'N S', name: 'web' } },
      {
        object: 'Service N S/web',
        field: 'metadata.namespace',
        value: 'N S',
        reason: expect.stringContaining('not a DNS label'),
      },
    ],
    [
      { metadata: { namespace: 'ns', name: 'x'.repeat(65_536) } },
      {
        object: `Service ns/${'x'.repeat(61)}...`,
        field: 'metadata.name',
        value: `${'x'.repeat(61)}...`,
        reason: expect.stringContaining('not a DNS label'),
      },
    ],
  ])('%#: whose name cannot be printed', (object, refusal) => {
    expect(refused(object)).toEqual(refusal)
  })
})
