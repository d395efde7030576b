import { describe, expect, it } from 'vitest'
import { finish } from '../../../src/base/clock.ts'
import { flowPorts, type View, versionOf } from '../../../src/flows/ports.ts'
import { type Judgment, ruleBooks } from '../../../src/flows/stale.ts'
import type { Flow } from '../../../src/kernel/conntrack/flow.ts'
import { flow } from '../kernel/conntrack/flows.ts'
import { node } from '../model/objects.ts'
import { DNS_PORT, dns, dnsSlice, type EndpointWords, key, READY, view } from './views.ts'

const CLIENT = '10.1.0.5:4000'
const [A, B] = ['10.2.0.1', '10.2.0.2']

/** What becomes of a flow when ns/dns is as `now` says, and was as `before` says. */
function judged(each: Flow, now: View, before: readonly View[] = []): Judgment['kind'] {
  const look = {
    current: flowPorts(versionOf(now, 'ns/dns')),
    former: before.flatMap(one => flowPorts(versionOf(one, 'ns/dns'))),
  }
  const books = finish(ruleBooks({ looks: [look], view: now, phase: 'under way' }))
  const book = books.find(({ family, protocol }) => family === each.family && protocol === each.protocol)
  if (book?.concerns(each.destination, each.destinationPort) !== true) return 'keep'
  return book.judge(each).kind
}

const toVip = (answeredBy?: string) => flow(CLIENT, '10.96.0.10:53', answeredBy)
const served = view([dns(), dnsSlice({ [A]: READY })])

describe('a UDP flow to the address of a Service', () => {
  const elsewhere = {
    ...{ addresses: [A], conditions: READY, nodeName: 'other' },
    hints: { forZones: [{ name: 'elsewhere' }] },
  }
  it.each([
    ['keep', 'its endpoint is ready', dnsSlice({ [A]: READY, [B]: READY })],
    ['keep', 'it terminates and serves', dnsSlice({ [A]: { ready: false, serving: true }, [B]: READY })],
    ['keep', 'policies and topology send new flows elsewhere', dnsSlice({}, { endpoints: [elsewhere] })],
    ['stale', 'its endpoint is gone', dnsSlice({ [B]: READY })],
    ['stale', 'it does not serve', dnsSlice({ [A]: { ready: false, serving: false }, [B]: READY })],
    ['stale', 'I-12 no endpoint is left at all', dnsSlice({})],
  ])('is judged as %s when %s', (judgment, _, slice) => {
    const now = view([dns({ internalTrafficPolicy: 'Local' }), slice])
    expect(judged(toVip(`${A}:1053`), now)).toBe(judgment)
  })

  it.each([
    ['I-12 no slice is left at all', toVip(`${A}:1053`), view([dns()])],
    ['its endpoint serves at another port now', toVip(`${A}:9999`), served],
    ['I-13 it was never translated', toVip(), served],
  ])('is stale when %s', (_, each, now) => {
    expect(judged(each, now)).toBe('stale')
  })

  it('is not ours at another port or another address', () => {
    expect(judged(flow(CLIENT, '10.96.0.10:54', `${B}:1053`), served)).toBe('keep')
    expect(judged(flow(CLIENT, '10.96.0.11:53', `${B}:1053`), served)).toBe('keep')
    expect(judged(flow(CLIENT, '10.96.0.10:53', `${B}:1053`, { protocol: 'TCP' }), served)).toBe('keep')
  })

  it('is judged by family', () => {
    const dual = view([
      dns({ clusterIPs: ['10.96.0.10', 'fd00:96::10'] }),
      dnsSlice({ [A]: READY }),
      dnsSlice({ 'fd00:2::1': READY }, { addressType: 'IPv6', metadata: { name: 'dns-6' } }),
    ])
    expect(judged(flow('[fd00::5]:4000', '[fd00:96::10]:53', '[fd00:2::1]:1053'), dual)).toBe('keep')
    expect(judged(flow('[fd00::5]:4000', '[fd00:96::10]:53', '[fd00:2::2]:1053'), dual)).toBe('stale')
    expect(judged(toVip(`${A}:1053`), dual)).toBe('keep')
  })

  it('is judged at external and load-balancer addresses, too', () => {
    const status = { loadBalancer: { ingress: [{ ip: '198.51.100.1' }] } }
    const balanced = { ...dns({ type: 'LoadBalancer', externalIPs: ['192.0.2.9'] }), status }
    const now = view([balanced, dnsSlice({ [A]: READY })])
    for (const address of ['198.51.100.1:53', '192.0.2.9:53']) {
      expect(judged(flow(CLIENT, address, `${A}:1053`), now)).toBe('keep')
      expect(judged(flow(CLIENT, address, `${B}:1053`), now)).toBe('stale')
    }
  })
})

describe('a UDP flow to a Service that was deleted', () => {
  const gone = view([], served, { remove: ['ns/dns'] })

  it.each([
    ['stale', 'an endpoint of it answers', toVip(`${A}:1053`)],
    ['stale', 'it was not translated', toVip()],
    ['keep', 'another address answers', toVip('10.9.9.9:53')],
  ])('is judged as %s when %s', (judgment, _, each) => {
    expect(judged(each, gone, [served])).toBe(judgment)
  })
})

describe('a UDP flow to a NodePort', () => {
  const spec = { type: 'NodePort', ports: [{ ...DNS_PORT, nodePort: 30053 }] }
  const objects = [dns(spec), dnsSlice({ [A]: READY }), node({ ips: ['192.168.1.7'] })]
  const primary = view(objects)

  it('is judged at the addresses where NodePorts answer', () => {
    expect(judged(flow(CLIENT, '192.168.1.7:30053', `${A}:1053`), primary)).toBe('keep')
    expect(judged(flow(CLIENT, '192.168.1.7:30053', `${B}:1053`), primary)).toBe('stale')
    expect(judged(flow(CLIENT, '192.168.1.7:30053'), primary)).toBe('stale')
  })

  it('I-17 is not ours at any other address, whatever answers', () => {
    expect(judged(flow(CLIENT, '203.0.113.9:30053'), primary)).toBe('keep')
    expect(judged(flow(CLIENT, '192.168.1.8:30053', `${B}:1053`), primary)).toBe('keep')
  })

  it('I-17 is not ours at the numbers of other programs of the node', () => {
    for (const port of [8472, 500, 4500])
      expect(judged(flow('192.168.1.9:40000', `192.168.1.7:${port}`), primary)).toBe('keep')
  })

  it('is recognized by its endpoint where addresses of the node are unknown', () => {
    const everywhere = view([dns(spec), dnsSlice({ [B]: READY })])
    const before = view([dns(spec), dnsSlice({ [A]: READY })])
    expect(everywhere.table.nodePorts.IPv4.kind).toBe('all')
    expect(judged(flow(CLIENT, '203.0.113.9:30053'), everywhere, [before])).toBe('keep')
    expect(judged(flow(CLIENT, '203.0.113.9:30053', '10.9.9.9:53'), everywhere, [before])).toBe('keep')
    expect(judged(flow(CLIENT, '192.0.2.7:30053', `${A}:1053`), everywhere, [before])).toBe('stale')
    expect(judged(flow(CLIENT, '192.0.2.7:30053', `${B}:1053`), everywhere, [before])).toBe('keep')
  })

  it('F218 is not ours at an address and port of another Service, which may have the same endpoint', () => {
    const other = dns({ clusterIP: '10.96.0.99', ports: [{ ...DNS_PORT, port: 30053 }] })
    const taken = { ...other, metadata: { name: 'other', namespace: 'ns' } }
    const [before, now] = [A, B].map(ip => view([dns(spec), dnsSlice({ [ip]: READY }), taken]))
    if (before === undefined || now === undefined) throw new Error('unreachable')
    expect(judged(flow(CLIENT, '10.96.0.99:30053', `${A}:1053`), now, [before])).toBe('keep')
    expect(judged(flow(CLIENT, '192.0.2.7:30053', `${A}:1053`), now, [before])).toBe('stale')
  })

  it('is judged at the addresses of interfaces where all of them answer', () => {
    const options = { nodePortSelection: { primary: false, cidrs: [] } }
    const all = view(objects, undefined, { localIps: ['127.0.0.1', '192.0.2.7'], options })
    expect(judged(flow(CLIENT, '192.0.2.7:30053', `${B}:1053`), all)).toBe('stale')
    expect(judged(flow(CLIENT, '127.0.0.1:30053', '10.9.9.9:53'), all)).toBe('keep')
  })

  it('is not ours once the Service has left, unless its endpoint answers', () => {
    const gone = view([], primary, { remove: ['ns/dns'] })
    expect(judged(flow(CLIENT, '192.168.1.7:30053'), gone, [primary])).toBe('keep')
    expect(judged(flow(CLIENT, '192.168.1.7:30053', '10.9.9.9:53'), gone, [primary])).toBe('keep')
    expect(judged(flow(CLIENT, '192.168.1.7:30053', `${A}:1053`), gone, [primary])).toBe('stale')
  })
})

describe('a TCP connection', () => {
  const ports = [{ name: 'dns', port: 53, protocol: 'TCP' }]
  const sliceOf = (endpoints: Record<string, object>) =>
    dnsSlice(Object.fromEntries(Object.entries(endpoints).map(([name, words]) => [name, { ...words }])), {
      ports: [{ name: 'dns', port: 1053, protocol: 'TCP' }],
    })
  const tcp = (answeredBy?: string) => flow(CLIENT, '10.96.0.10:53', answeredBy, { protocol: 'TCP' })
  const draining = { 'kprobe.io/tcp-drain': '30s' }

  const terminating = { ready: false, serving: false, terminating: true }
  it.each([
    ['keep', 'I-20 the Service does not say otherwise', {}, { [B]: READY }],
    ['drain', 'its endpoint has gone and the Service says so', draining, { [B]: READY }],
    ['keep', 'its endpoint is listed, serving or not', draining, { [A]: terminating, [B]: READY }],
  ])('is judged as %s when %s', (judgment, _, annotations, endpoints) => {
    const now = view([dns({ ports }, annotations), sliceOf(endpoints)])
    expect(judged(tcp(`${A}:1053`), now)).toBe(judgment)
  })

  it('is kept when it was not translated, or the Service is deleted', () => {
    const now = view([dns({ ports }, draining), sliceOf({ [A]: READY })])
    expect(judged(tcp(), now)).toBe('keep')
    expect(judged(tcp(`${A}:1053`), view([], now, { remove: ['ns/dns'] }), [now])).toBe('keep')
  })

  it('is counted together with the others between the same place and endpoint', () => {
    const now = view([dns({ ports }, draining), sliceOf({ [B]: READY })])
    const look = { current: flowPorts(versionOf(now, 'ns/dns')), former: [] }
    const [book] = finish(ruleBooks({ looks: [look], view: now, phase: 'under way' }))
    expect(book?.judge(tcp(`${A}:1053`))).toEqual({
      kind: 'drain',
      service: 'ns/dns',
      between: key('10.96.0.10:53') + key(`${A}:1053`),
      drainMs: 30_000,
    })
  })
})

describe('an SCTP association', () => {
  const ports = [{ ...DNS_PORT, protocol: 'SCTP' }]
  const at = (endpoints: EndpointWords) =>
    view([dns({ ports }), dnsSlice(endpoints, { ports: [{ name: 'dns', port: 1053, protocol: 'SCTP' }] })])
  const sctp = (answeredBy = `${A}:1053`, isDnat = true) =>
    flow(CLIENT, '10.96.0.10:53', answeredBy, { protocol: 'SCTP', isDnat })

  it.each([
    ['is stale when its endpoint is in no slice', 'stale', sctp(), at({ [B]: READY })],
    ['is stale when no endpoint is left', 'stale', sctp(), at({})],
    ['is kept while its endpoint serves', 'keep', sctp(), at({ [A]: READY })],
    ['is kept while its endpoint is listed', 'keep', sctp(), at({ [A]: { ready: false, serving: false } })],
    ['is kept when no rule translated it, but IPVS', 'keep', sctp(`${A}:1053`, false), at({ [B]: READY })],
    ['is kept when its Service is deleted', 'keep', sctp(), view([])],
  ])('%s', (_, judgment, association, now) => {
    expect(judged(association, now, [at({ [A]: READY })])).toBe(judgment)
  })
})
