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
  const second = (port: unknown) => ({ ports: [{ port: 80 }, port] })
  const timeout = (timeoutSeconds: number) => ({
    sessionAffinity: 'ClientIP',
    sessionAffinityConfig: { clientIP: { timeoutSeconds } },
  })
  const ranges = (range: string) => ({ loadBalancerSourceRanges: ['10.0.0.0/8', range] })
  const PORT = 'not a port; whole numbers from 1 to 65535 are accepted'
  const POLICY = 'not a traffic policy; Cluster and Local are accepted; using Cluster'
  const TIMEOUT = 'not a timeout; 1 to 86400 seconds are accepted; using 10800'
  it.each<[value: string, reason: string, spec: Fields, rest?: { status?: Fields }]>([
    ['type = Banana', 'not a type of Service; using ClusterIP', { type: 'Banana' }],
    [
      'clusterIPs[1] = 10.96.0.2',
      'a second IPv4 address; a Service has one per family',
      { clusterIPs: ['10.96.0.1', '10.96.0.2'] },
    ],
    [
      'clusterIPs[1] = fd00::1',
      'an IPv6 address where an IPv4 one belongs',
      { clusterIPs: ['10.96.0.1', 'fd00::1'], ipFamilies: ['IPv4', 'IPv4'] },
    ],
    ['ports[1] = x', 'not an object', second('x')],
    ['ports[1].port = 0', PORT, second({ name: 'a', port: 0 })],
    ['ports[1].port = 65536', PORT, second({ name: 'a', port: 65536 })],
    ['ports[1].port = "81"', `a quoted string, and ${PORT}`, second({ name: 'a', port: '81' })],
    ['ports[1].port = 1.5', PORT, second({ name: 'a', port: 1.5 })],
    ['ports[0].nodePort = -1', PORT, { ports: [{ port: 80, nodePort: -1 }] }],
    [
      'ports[1].protocol = ICMP',
      'not a protocol of Services; TCP, UDP and SCTP are accepted',
      second({ name: 'a', port: 81, protocol: 'ICMP' }),
    ],
    [
      'ports[1].name = A\\u0022\\u000a',
      'not a DNS label; 1 to 63 lower-case letters, digits and inner hyphens are accepted',
      second({ name: 'A"\n', port: 81 }),
    ],
    ['ports[1].name = ', 'the name of an earlier port with the same protocol', second({ port: 81 })],
    ['externalIPs = 7', 'not a list; ignored', { externalIPs: 7 }],
    [
      'externalIPs[1] = 127.0.0.1',
      'a loopback address, which every node has for itself',
      { externalIPs: ['192.0.2.1', '127.0.0.1'] },
    ],
    [
      'externalIPs[0] = fd00::1',
      'an IPv6 address of a Service that has no IPv6 ClusterIP',
      { externalIPs: ['fd00::1'] },
    ],
    [
      'loadBalancerSourceRanges[1] = 10.0.0.1',
      'not a CIDR; write it like 192.0.2.0/24 or 2001:db8::/32',
      ranges('10.0.0.1'),
    ],
    [
      'loadBalancerSourceRanges[1] = 10.0.0.0/33',
      'not a CIDR: the prefix length must be 0 to 32',
      ranges('10.0.0.0/33'),
    ],
    [
      'loadBalancerSourceRanges[1] = ::ffff:10.0.0.0/104',
      'a prefix of IPv4-mapped IPv6 addresses, which programs read as either family; write plain IPv4',
      ranges('::ffff:10.0.0.0/104'),
    ],
    ['internalTrafficPolicy = Near', POLICY, { internalTrafficPolicy: 'Near' }],
    ['externalTrafficPolicy = Near', POLICY, { externalTrafficPolicy: 'Near' }],
    [
      'sessionAffinity = Cookie',
      'not an affinity; None and ClientIP are accepted; using None',
      { sessionAffinity: 'Cookie' },
    ],
    ['sessionAffinityConfig.clientIP.timeoutSeconds = 0', TIMEOUT, timeout(0)],
    ['sessionAffinityConfig.clientIP.timeoutSeconds = 86401', TIMEOUT, timeout(86401)],
    [
      'status.loadBalancer.ingress[0].ip = 127.0.0.1',
      'a loopback address, which every node has for itself',
      LB,
      ingress({ ip: '127.0.0.1' }),
    ],
    [
      'status.loadBalancer.ingress[0].ipMode = Tunnel',
      'not a mode; VIP and Proxy are accepted, using Proxy',
      LB,
      ingress({ ip: '192.0.2.1', ipMode: 'Tunnel' }),
    ],
    ['status.loadBalancer.ingress[0] = 5', 'not an object', LB, ingress(5)],
  ])('%s: %s', (at, reason, spec, rest) => {
    const value = web(spec, rest)
    const field = at.startsWith('status.') ? at : `spec.${at}`
    expect(refusalLines(value)).toEqual([`Service ns/web: ${field}: ${reason}`])
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
  const NAME = 'metadata.name'
  const LONG = 'x'.repeat(65_536)
  it.each<[object: Fields, label: string, field: string, value: string]>([
    [{}, 'default/nothing', NAME, 'nothing'],
    [
      { metadata: { namespace: 'ns', name: 'a\n"\u202e' } },
      'ns/a\\u000a\\u0022\\u202e',
      NAME,
      'a\\u000a\\u0022\\u202e',
    ],
    [{ metadata: { namespace: 'N S', name: 'web' } }, 'N S/web', 'metadata.namespace', 'N S'],
    [
      { metadata: { namespace: 'ns', name: LONG } },
      `ns/${LONG.slice(0, 61)}...`,
      NAME,
      `${LONG.slice(0, 61)}...`,
    ],
  ])('%#: whose name cannot be printed', (object, label, field, value) => {
    const reason = expect.stringContaining('not a DNS label')
    expect(refused(object)).toEqual({ object: `Service ${label}`, field, value, reason })
  })
})

describe('annotations of a Service', () => {
  const annotated = (name: string, value: unknown) =>
    web({}, { metadata: { annotations: { [`kprobe.io/${name}`]: value } } })

  it.each([
    ['leave', undefined],
    ['cut', 0],
    ['0', 0],
    ['0s', 0],
    ['1m30s', 90_000],
    ['1500ms', 1_500],
    ['24h', 86_400_000],
  ])('tcp-drain %j is read as %j ms', (value, ms) => {
    expect(annotated('tcp-drain', value)).toMatchObject({ tcpDrainMs: ms, refusals: [] })
  })

  it.each(['rr', 'a_b-2', 'x'.repeat(15)])('ipvs-scheduler %j is read as it is', value => {
    expect(annotated('ipvs-scheduler', value)).toMatchObject({ ipvsScheduler: value, refusals: [] })
  })

  it.each([
    ...['', 'CUT', '30', '-1s', '25h', 'soon', 30, null, {}].map(value => ['tcp-drain', value] as const),
    ...['', 'RR', 'r r', 'rr\n', 'x'.repeat(16), 'ü', 1, null, {}].map(
      value => ['ipvs-scheduler', value] as const,
    ),
  ])('%s %j is refused once, and the default counts', (name, value) => {
    const read = annotated(name, value)
    expect([read.tcpDrainMs, read.ipvsScheduler]).toEqual([undefined, undefined])
    const reason = name === 'tcp-drain' ? 'neither leave, cut nor a duration' : 'not the name of a scheduler'
    expect(refusalLines(read)).toEqual([expect.stringContaining(reason)])
    expect(read.refusals[0]?.field).toBe(`metadata.annotations[kprobe.io/${name}]`)
  })

  it('are read as absent where there are none', () => {
    for (const annotations of [null, { other: 'rr' }])
      expect(web({}, { metadata: { annotations } }).ipvsScheduler).toBeUndefined()
  })
})
