import { describe, expect, it } from 'vitest'
import type { ApiState } from '../../../src/api/state.ts'
import { endpoint, node, service, slice } from '../model/objects.ts'
import { detailed, shownObjects, stateOf, Viewer } from './views.ts'

const HERE = { nodeName: 'here' }

const EVERYTHING = {
  type: 'LoadBalancer',
  clusterIPs: ['10.96.0.1', 'fd00:96::1'],
  ports: [
    { name: 'http', port: 80, nodePort: 30080, targetPort: 8080 },
    { name: 'dns', port: 53, protocol: 'UDP', targetPort: 'domain' },
    { name: 'sctp', port: 90, protocol: 'SCTP' },
  ],
  externalIPs: ['192.0.2.1', '2001:db8::1'],
  loadBalancerSourceRanges: ['10.0.0.0/8', '2001:db8:1::/48', '203.0.113.0/24'],
  sessionAffinity: 'ClientIP',
  sessionAffinityConfig: { clientIP: { timeoutSeconds: 77 } },
  externalTrafficPolicy: 'Local',
  internalTrafficPolicy: 'Local',
  healthCheckNodePort: 32000,
}
const BESIDE = {
  metadata: { labels: { b: '2', a: '1' }, annotations: { note: 'x' } },
  status: { loadBalancer: { ingress: [{ ip: '198.51.100.1' }, { ip: '2001:db8::2' }] } },
}

describe('a Service as localv1 has it', () => {
  it('has all that kube-proxy would need of it', () => {
    const { services, endpoints } = shownObjects(
      stateOf([
        node(),
        service('web', EVERYTHING, BESIDE),
        slice('web-4', 'web', [endpoint('10.1.0.1', { nodeName: 'here', hostname: 'web-0' })], {
          ports: [
            { name: 'http', port: 8080 },
            { name: 'dns', port: 5353, protocol: 'UDP' },
            { name: 'sctp', port: 90, protocol: 'SCTP' },
          ],
        }),
        slice('web-6', 'web', [endpoint('fd00:1::1', { nodeName: 'there' })], {
          addressType: 'IPv6',
          ports: [{ name: 'http', port: 8080 }],
        }),
      ]),
    )
    expect(services).toEqual({
      'ns/web': {
        Namespace: 'ns',
        Name: 'web',
        Type: 'LoadBalancer',
        IPs: {
          ClusterIPs: { V4: ['10.96.0.1'], V6: ['fd00:96::1'] },
          ExternalIPs: { V4: ['192.0.2.1'], V6: ['2001:db8::1'] },
          LoadBalancerIPs: { V4: ['198.51.100.1'], V6: ['2001:db8::2'] },
        },
        Ports: [
          { Name: 'http', Protocol: 1, Port: 80, NodePort: 30080, TargetPort: 8080 },
          { Name: 'dns', Protocol: 2, Port: 53, TargetPortName: 'domain' },
          { Name: 'sctp', Protocol: 3, Port: 90, TargetPort: 90 },
        ],
        ExternalTrafficToLocal: true,
        Labels: { a: '1', b: '2' },
        Annotations: { note: 'x' },
        IPFilters: [
          { TargetIPs: { V4: ['198.51.100.1'] }, SourceRanges: ['10.0.0.0/8', '203.0.113.0/24'] },
          { TargetIPs: { V6: ['2001:db8::2'] }, SourceRanges: ['2001:db8:1::/48'] },
        ],
        ClientIP: { TimeoutSeconds: 77 },
        InternalTrafficToLocal: true,
        HealthCheckNodePort: 32000,
      },
    })
    // The endpoint elsewhere is in neither scope.
    expect(endpoints).toEqual({
      'ns/web/10.1.0.1,dns=5353': {
        Hostname: 'web-0',
        IPs: { V4: ['10.1.0.1'] },
        Local: true,
        PortOverrides: [{ Name: 'dns', Port: 5353 }],
        Scopes: { Internal: true, External: true },
      },
    })
  })

  it('has its health check node port once no older Service has it', () => {
    const checked = (name: string, ip: string) =>
      detailed(
        service(name, {
          type: 'LoadBalancer',
          clusterIPs: [ip],
          externalTrafficPolicy: 'Local',
          healthCheckNodePort: 32000,
        }),
      )
    const viewer = new Viewer()
    const portsIn = (state: ApiState) =>
      state.services.values().map(({ json }) => 'HealthCheckNodePort' in json && json.HealthCheckNodePort)
    expect(portsIn(viewer.take([checked('a', '10.96.0.1'), checked('b', '10.96.0.2')]))).toEqual([
      32000,
      undefined,
    ])
    expect(portsIn(viewer.take([{ kind: 'Service', key: 'ns/a', value: undefined }]))).toEqual([32000])
  })

  it('has no more than it needs, but for the two sets of addresses that back ends rely on', () => {
    const { services, endpoints } = shownObjects(
      stateOf([
        node(),
        service('web'),
        slice('s', 'web', [endpoint('10.1.0.1')], { ports: [{ name: '', port: 80 }] }),
      ]),
    )
    expect(services).toEqual({
      'ns/web': {
        Namespace: 'ns',
        Name: 'web',
        Type: 'ClusterIP',
        IPs: { ClusterIPs: { V4: ['10.96.0.1'] }, ExternalIPs: {} },
        Ports: [{ Protocol: 1, Port: 80, TargetPort: 80 }],
      },
    })
    expect(endpoints).toEqual({ 'ns/web/10.1.0.1': { IPs: { V4: ['10.1.0.1'] } } })
  })

  it('gets a headless Service of its name, as a whole where it has no ports', () => {
    const labels = { 'service.kubernetes.io/service-proxy-name': 'all-ip' }
    const spec = {
      clusterIP: 'None',
      clusterIPs: ['None'],
      ipFamilies: ['IPv4', 'IPv6'],
      externalIPs: ['192.0.2.7', '1100::100'],
    }
    const objects = (ports: unknown) => [
      node(),
      service('t', { ...spec, ports }, { metadata: { labels } }),
      slice('t-6', 't', [endpoint('1100::202', HERE), endpoint('1100::203')], {
        addressType: 'IPv6',
        ports: ports === undefined ? [] : [{ name: '', port: 6000 }],
        metadata: { labels: { 'kubernetes.io/service-name': 't', 'service.kubernetes.io/headless': '' } },
      }),
    ]
    const options = { serviceProxyName: 'all-ip' }
    const whole = shownObjects(stateOf(objects(undefined), options))
    const withPorts = shownObjects(stateOf(objects([{ port: 6000 }]), options))
    const IPs = {
      ClusterIPs: {},
      ExternalIPs: { V4: ['192.0.2.7'], V6: ['1100::100'] },
      Headless: true,
    }
    expect(whole.services).toMatchObject({ 'ns/t': { IPs, MapIP: true } })
    expect(whole.services).not.toHaveProperty(['ns/t', 'Ports'])
    expect(withPorts.services).toMatchObject({
      'ns/t': { IPs, Ports: [{ Protocol: 1, Port: 6000, TargetPort: 6000 }] },
    })
    expect(withPorts.services).not.toHaveProperty(['ns/t', 'MapIP'])
    const endpoints = {
      'ns/t/1100::202': { IPs: { V6: ['1100::202'] }, Local: true },
      'ns/t/1100::203': { IPs: { V6: ['1100::203'] } },
    }
    expect(whole.endpoints).toEqual(endpoints)
    expect(withPorts.endpoints).toEqual(endpoints)
    expect(shownObjects(stateOf(objects(undefined))).services).toEqual({})
  })

  it('leaves out what is another proxy’s, an ExternalName, and what older Services have', () => {
    const other = { metadata: { labels: { 'service.kubernetes.io/service-proxy-name': 'x' } } }
    const external = { externalIPs: ['192.0.2.9'] }
    const { services } = shownObjects(
      stateOf([
        node(),
        service('other', {}, other),
        service('name', { type: 'ExternalName', externalName: 'example.org', clusterIP: undefined }),
        service(
          'old',
          { clusterIP: '10.96.0.2', ...external },
          { metadata: { creationTimestamp: '2026-01-01T00:00:00Z' } },
        ),
        service(
          'young',
          { clusterIP: '10.96.0.3', ...external },
          { metadata: { creationTimestamp: '2026-01-02T00:00:00Z' } },
        ),
      ]),
    )
    expect(Object.keys(services)).toEqual(['ns/old', 'ns/young'])
    expect(services).toMatchObject({
      'ns/old': { IPs: { ExternalIPs: { V4: ['192.0.2.9'] } } },
      'ns/young': { IPs: { ExternalIPs: {} } },
    })
  })
})

describe('the clients that may come to a load balancer', () => {
  const BALANCER = {
    status: { loadBalancer: { ingress: [{ ip: '198.51.100.1' }, { ip: '2001:db8::2' }] } },
  }

  it.each([
    ['no ranges', undefined, undefined],
    ['a range that all are in', ['0.0.0.0/0', '::/0'], undefined],
    [
      'a range that all of one family are in',
      ['0.0.0.0/0', '2001:db8:1::/48'],
      [{ TargetIPs: { V6: ['2001:db8::2'] }, SourceRanges: ['2001:db8:1::/48'] }],
    ],
  ])('are named where not everybody may: %s', (_, loadBalancerSourceRanges, filters) => {
    const spec = { type: 'LoadBalancer', clusterIPs: ['10.96.0.1', 'fd00:96::1'], loadBalancerSourceRanges }
    const { services } = shownObjects(stateOf([node(), service('web', spec, BALANCER)]))
    expect(services).toMatchObject({
      'ns/web': { IPs: { LoadBalancerIPs: { V4: ['198.51.100.1'], V6: ['2001:db8::2'] } } },
    })
    expect(Object.values(services).map(({ IPFilters }) => IPFilters)).toEqual([filters])
  })
})

describe('the endpoints of a node', () => {
  const endpointsOf = (spec: object, endpoints: readonly unknown[], rest = {}) =>
    shownObjects(
      stateOf([node({ zone: 'a' }), service('web', { ...spec }), slice('s', 'web', endpoints, rest)]),
    ).endpoints
  const SAME = { ports: [{ name: '', port: 80 }] }

  it('have scopes where a policy is Local', () => {
    const spec = { type: 'NodePort', ports: [{ port: 80, nodePort: 30080 }] }
    const list = [endpoint('10.1.0.1', HERE), endpoint('10.1.0.2', { nodeName: 'there' })]
    const address = (last: number) => ({ IPs: { V4: [`10.1.0.${last}`] } })
    expect(endpointsOf({ ...spec, externalTrafficPolicy: 'Local' }, list, SAME)).toEqual({
      'ns/web/10.1.0.1': { ...address(1), Local: true, Scopes: { Internal: true, External: true } },
      'ns/web/10.1.0.2': { ...address(2), Scopes: { Internal: true } },
    })
    expect(endpointsOf({ ...spec, internalTrafficPolicy: 'Local' }, list, SAME)).toEqual({
      'ns/web/10.1.0.1': { ...address(1), Local: true, Scopes: { Internal: true, External: true } },
      'ns/web/10.1.0.2': { ...address(2), Scopes: { External: true } },
    })
    // Nobody but the node itself may come in, and nothing but the ClusterIP leads there.
    expect(endpointsOf({ internalTrafficPolicy: 'Local' }, list, SAME)).toEqual({
      'ns/web/10.1.0.1': { ...address(1), Local: true, Scopes: { Internal: true } },
    })
  })

  it('have their own ports where the Service names one, or says another', () => {
    const named = { ports: [{ name: 'http', port: 80, targetPort: 'web' }] }
    const ports = (port: number) => ({ ports: [{ name: 'http', port }] })
    expect(endpointsOf(named, [endpoint('10.1.0.1')], ports(8080))).toEqual({
      'ns/web/10.1.0.1,http=8080': {
        IPs: { V4: ['10.1.0.1'] },
        PortOverrides: [{ Name: 'http', Port: 8080 }],
      },
    })
    const numbered = { ports: [{ name: 'http', port: 80, targetPort: 8080 }] }
    expect(endpointsOf(numbered, [endpoint('10.1.0.1')], ports(8080))).toEqual({
      'ns/web/10.1.0.1': { IPs: { V4: ['10.1.0.1'] } },
    })
    expect(Object.keys(endpointsOf(numbered, [endpoint('10.1.0.1')], ports(9090)))).toEqual([
      'ns/web/10.1.0.1,http=9090',
    ])
  })

  it('are distinguished by their ports where pods share the address of their node', () => {
    const { endpoints } = shownObjects(
      stateOf([
        node(),
        service('web', { ports: [{ port: 80, targetPort: 'web' }] }),
        slice('s1', 'web', [endpoint('10.1.0.1')], { ports: [{ name: '', port: 8080 }] }),
        slice('s2', 'web', [endpoint('10.1.0.1')], { ports: [{ name: '', port: 8081 }] }),
      ]),
    )
    expect(endpoints).toEqual({
      'ns/web/10.1.0.1,=8080': { IPs: { V4: ['10.1.0.1'] }, PortOverrides: [{ Port: 8080 }] },
      'ns/web/10.1.0.1,=8081': { IPs: { V4: ['10.1.0.1'] }, PortOverrides: [{ Port: 8081 }] },
    })
  })
})
