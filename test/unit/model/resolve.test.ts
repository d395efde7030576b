import { describe, expect, it } from 'vitest'
import { formatCidr, formatIp } from '../../../src/base/ip.ts'
import type { FrontendTable } from '../../../src/model/frontend.ts'
import { cidr, ip } from '../../support/addresses.ts'
import { IS_QUICK } from '../../support/runs.ts'
import {
  endpoint,
  node,
  OPTIONS,
  onlyPort,
  portShown,
  refusalLines,
  service,
  serviceCidr,
  slice,
  tableOf,
  texts,
} from './objects.ts'

const POD = slice('web-1', 'web', [endpoint('10.1.0.1', { nodeName: 'here' })])
const balanced = (...ips: string[]) => ({ status: { loadBalancer: { ingress: ips.map(ip => ({ ip })) } } })

function complaints(table: FrontendTable, key = 'ns/web'): string[] {
  return refusalLines(table.services.get(key))
}

describe('resolve', () => {
  it.each([
    [undefined, undefined, true],
    ['kprobe', undefined, false],
    ['', undefined, false],
    ['kprobe', 'kprobe', true],
    [undefined, 'kprobe', false],
    ['other', 'kprobe', false],
  ])(
    'with the label service-proxy-name %j and the option %j serves a Service: %s',
    (label, serviceProxyName, isServed) => {
      const labels = label === undefined ? {} : { 'service.kubernetes.io/service-proxy-name': label }
      const table = tableOf([service('web', {}, { metadata: { labels } })], { serviceProxyName })
      expect(table.services.has('ns/web')).toBe(isServed)
    },
  )

  it.each([undefined, 'wrr'])('gives every port the scheduler %s of its Service', scheduler => {
    const annotations = scheduler === undefined ? {} : { 'kprobe.io/ipvs-scheduler': scheduler }
    expect(onlyPort(tableOf([service('web', {}, { metadata: { annotations } })])).scheduler).toBe(scheduler)
  })

  it('counts local backends by the lists that hold them', () => {
    const spec = { type: 'NodePort', externalTrafficPolicy: 'Local', ports: [{ port: 80, nodePort: 30080 }] }
    const table = tableOf([
      service('web', spec),
      POD,
      service('api', { clusterIP: '10.96.0.2' }),
      slice('api-1', 'api', [
        endpoint('10.1.0.1', { nodeName: 'here' }),
        endpoint('10.1.0.2', { nodeName: 'there' }),
      ]),
    ])
    expect([...table.localBackends.entries()].map(([ip, count]) => [formatIp(ip), count])).toEqual([
      ['10.1.0.1', 3],
    ])
  })

  it('reports what was refused of the Service and of its slices', () => {
    const table = tableOf([
      service('web', { externalIPs: ['127.0.0.1'] }),
      slice('web-1', 'web', [endpoint('127.0.0.1')]),
    ])
    expect(complaints(table).map(line => line.split(':')[0])).toEqual([
      'Service ns/web',
      'EndpointSlice ns/web-1',
    ])
  })

  it('gives the merged ServiceCIDRs, and what it knows of the Node', () => {
    const cidrs = ['10.96.0.0/13', '10.104.0.0/13'].map((text, index) => serviceCidr(`k${index}`, [text]))
    const table = tableOf([node({ podCIDRs: ['10.1.0.0/24'] }), ...cidrs])
    expect(table.serviceCidrs.map(formatCidr)).toEqual(['10.96.0.0/12'])
    expect(texts(table.node.ips)).toEqual(['192.168.1.7', 'fd01::7'])
    expect(table.node.podCidrs.map(formatCidr)).toEqual(['10.1.0.0/24'])
    expect(table.number).toBe(1)
  })
})

/** Of what test/scenarios/source-ranges*.yaml do not say. */
describe('source ranges', () => {
  function frontends(ranges: readonly string[], ips: readonly string[]): string[] {
    const spec = {
      type: 'LoadBalancer',
      clusterIPs: ['10.96.0.1', 'fd00:96::1'],
      loadBalancerSourceRanges: ranges,
    }
    const six = slice('web-6', 'web', [endpoint('fd00::1')], { addressType: 'IPv6' })
    const table = tableOf([node(), service('web', spec, balanced(...ips)), POD, six])
    const lines = (table.services.get('ns/web')?.ports ?? []).flatMap(port => portShown(port).frontends)
    return lines.filter(line => /^198|^\[2001/.test(line))
  }

  it('that make up everything let everyone in', () => {
    const everything = ['0.0.0.0/1', '128.0.0.0/1']
    expect(frontends(everything, ['198.51.100.1'])).toEqual(['198.51.100.1:80 external-cluster'])
  })

  it('are merged, and guard each of several addresses, in each family (I-47, I-48)', () => {
    expect(
      frontends(
        ['192.168.0.0/16', '10.0.0.0/8', '10.2.0.0/16', 'fd02::/16'],
        ['198.51.100.1', '198.51.100.2', '2001:db8::1', '2001:db8::2'],
      ),
    ).toEqual([
      '198.51.100.1:80 external-cluster from 10.0.0.0/8 192.168.0.0/16 198.51.100.1/32 198.51.100.2/32',
      '198.51.100.2:80 external-cluster from 10.0.0.0/8 192.168.0.0/16 198.51.100.1/32 198.51.100.2/32',
      '[2001:db8::1]:80 external-cluster from fd02::/16',
      '[2001:db8::2]:80 external-cluster from fd02::/16',
    ])
  })
})

describe('addresses that no Service may catch (I-02)', () => {
  const DNS = service('dns', { clusterIP: '10.96.0.10', ports: [{ port: 53, protocol: 'UDP' }] })

  it.each([
    ['10.96.0.10', 'the ClusterIP of Service ns/dns'],
    ['10.96.0.1', 'the ClusterIP of this Service'],
  ])('%s as an external IP or a load-balancer address', (address, reason) => {
    const table = tableOf([
      node(),
      DNS,
      service('web', { externalIPs: [address, '192.0.2.1'] }, balanced(address)),
      POD,
    ])
    expect(complaints(table)).toEqual([
      `Service ns/web: status.loadBalancer.ingress = ${address}: ${reason}`,
      `Service ns/web: spec.externalIPs = ${address}: ${reason}`,
    ])
    expect(portShown(onlyPort(table)).frontends).toEqual([
      '10.96.0.1:80 internal/cluster',
      '192.0.2.1:80 external-cluster',
    ])
    expect(complaints(table, 'ns/dns')).toEqual([])
    expect(portShown(onlyPort(table, 'ns/dns')).frontends).toEqual(['10.96.0.10:53 reject'])
  })

  it('refuses external IPs where the feature gate forbids them, and nothing else', () => {
    const objects = [service('web', { externalIPs: ['198.51.100.9'] }, balanced('198.51.100.8')), POD]
    const table = tableOf(objects, { allowServiceExternalIps: false })
    expect(complaints(table)).toEqual([
      'Service ns/web: spec.externalIPs = 198.51.100.9: an external IP, which the feature gate AllowServiceExternalIPs=false forbids',
    ])
    expect(tableOf(objects).services.get('ns/web')?.refusals).toEqual([])
  })

  it('takes a bind address for the primary one of its family, unless it is unspecified', () => {
    const primary = { nodePortSelection: { primary: true, cidrs: [] } }
    const nodePorts = (text: string) => tableOf([node()], { ...primary, bindAddress: ip(text) }).nodePorts
    expect(nodePorts('192.0.2.9').IPv4).toEqual({ kind: 'only', ips: [ip('192.0.2.9')] })
    expect(nodePorts('192.0.2.9').IPv6).toEqual(nodePorts('0.0.0.0').IPv6)
    expect(nodePorts('0.0.0.0').IPv4).toEqual({ kind: 'only', ips: [ip('192.168.1.7')] })
  })

  it('protects the ClusterIP of another proxy as well', () => {
    const labels = { 'service.kubernetes.io/service-proxy-name': 'other' }
    const other = service('other', { clusterIP: '10.96.0.10' }, { metadata: { labels } })
    expect(complaints(tableOf([other, service('web', { externalIPs: ['10.96.0.10'] })]))).toEqual([
      'Service ns/web: spec.externalIPs = 10.96.0.10: the ClusterIP of Service ns/other',
    ])
  })

  it('keeps to the prefixes that are allowed for each kind', () => {
    const options = {
      ...OPTIONS,
      allowedExternalCidrs: [cidr('192.0.2.0/24')],
      allowedLoadBalancerCidrs: [cidr('198.51.100.0/24')],
    }
    const spec = { externalIPs: ['192.0.2.1', '203.0.113.1'] }
    const table = tableOf([service('web', spec, balanced('198.51.100.1', '203.0.113.1')), POD], options)
    expect(complaints(table)).toEqual([
      'Service ns/web: status.loadBalancer.ingress = 203.0.113.1: outside --allowed-load-balancer-cidrs',
      'Service ns/web: spec.externalIPs = 203.0.113.1: outside --allowed-external-cidrs',
    ])
    expect(portShown(onlyPort(table)).frontends).toHaveLength(3)
  })

  it('endpoints that are the ClusterIP of their own Service (I-03)', () => {
    const endpoints = [endpoint('10.96.0.1'), endpoint('10.1.0.1')]
    const table = tableOf([service('web'), slice('web-1', 'web', endpoints)])
    expect(complaints(table)).toEqual([
      'EndpointSlice ns/web-1: endpoints = 10.96.0.1: the ClusterIP of the Service itself, to which its traffic would return',
    ])
    expect(portShown(onlyPort(table)).cluster).toEqual(['10.1.0.1:8080'])
  })

  it('takes endpoints that are external addresses of their Service: pods on the network of their nodes', () => {
    const spec = { externalIPs: ['192.0.2.1'] }
    const endpoints = [endpoint('192.0.2.1'), endpoint('198.51.100.1')]
    const table = tableOf([service('web', spec, balanced('198.51.100.1')), slice('web-1', 'web', endpoints)])
    expect(complaints(table)).toEqual([])
    expect(portShown(onlyPort(table)).cluster).toEqual(['192.0.2.1:8080', '198.51.100.1:8080'])
  })

  it('opens no way around source ranges for an address that is external as well', () => {
    const spec = { externalIPs: ['192.0.2.1'], loadBalancerSourceRanges: ['203.0.113.0/x'] }
    const table = tableOf([service('web', spec, balanced('192.0.2.1')), POD])
    expect(portShown(onlyPort(table)).frontends).toEqual(['10.96.0.1:80 internal/cluster'])
    const options = { ...OPTIONS, allowedLoadBalancerCidrs: [cidr('198.51.100.0/24')] }
    const ranged = { externalIPs: ['192.0.2.1'], loadBalancerSourceRanges: ['203.0.113.0/24'] }
    const other = tableOf([service('web', ranged, balanced('192.0.2.1')), POD], options)
    expect(portShown(onlyPort(other)).frontends).toEqual(['10.96.0.1:80 internal/cluster'])
  })

  it('keeps a Service whose ClusterIP was refused for its refusals', () => {
    const table = tableOf([service('web', { clusterIP: '127.0.0.1' })])
    expect(table.services.get('ns/web')?.ports).toEqual([])
    expect(complaints(table)).toEqual([
      'Service ns/web: spec.clusterIP = 127.0.0.1: a loopback address, which every node has for itself',
    ])
  })
})

describe('objects of hostile size', () => {
  it.skipIf(IS_QUICK)('cost time in proportion', () => {
    const ports = Array.from({ length: 20_000 }, (_, index) => ({
      name: `p-${index}`,
      port: 80,
      nodePort: 30080,
    }))
    const externalIPs = Array.from({ length: 2000 }, (_, index) => `192.0.${index >> 8}.${index & 255}`)
    const endpoints = Array.from({ length: 150_000 }, () => endpoint('127.0.0.1'))
    const start = performance.now()
    const table = tableOf([
      service('web', { type: 'NodePort', ports }),
      service('api', { externalIPs }),
      slice('web-1', 'web', endpoints),
    ])
    expect(performance.now() - start).toBeLessThan(50_000)
    expect(table.services.get('ns/web')?.ports).toHaveLength(1)
    expect(table.services.get('ns/web')?.refusals.length).toBeGreaterThan(150_000)
  })
})
