import { describe, expect, it } from 'vitest'
import { finish } from '../../../src/base/clock.ts'
import { lookAtHalfOpen, type View, versionOf } from '../../../src/flows/ports.ts'
import { ruleBooks } from '../../../src/flows/stale.ts'
import { flow } from '../kernel/conntrack/flows.ts'
import { dns, dnsSlice, type EndpointWords, READY, view } from './views.ts'

const [A, B, C] = ['10.2.0.1', '10.2.0.2', '10.2.0.3']
const PORTS = [{ name: 'dns', port: 53, protocol: 'TCP', nodePort: 30053 }]
const SERVING = { ready: false, serving: true, terminating: true }
const UNREADY = { ready: false, serving: false }

const service = dns({ type: 'NodePort', externalIPs: ['192.0.2.9'], ports: PORTS })
const slice = (endpoints: EndpointWords, name = 'dns-a', port = 1053) =>
  dnsSlice(endpoints, { metadata: { name }, ports: [{ name: 'dns', port, protocol: 'TCP' }] })
const of = (...slices: readonly object[]) => view([service, ...slices])
const both = of(slice({ [A]: READY, [B]: READY }))

function looked(before: readonly View[], now: View) {
  const versions = before.map(each => versionOf(each, 'ns/dns'))
  return lookAtHalfOpen(versions, versionOf(now, 'ns/dns'))
}

/** The flows that go when these versions of ns/dns are followed by `now`. */
function stale(before: readonly View[], now: View, isHalfOpen = true): readonly string[] {
  const look = looked(before, now)
  if (look === undefined) return []
  const [book] = finish(ruleBooks({ looks: [look], view: now, phase: 'half-open' }))
  const cases = [
    ['10.96.0.10:53', `${A}:1053`],
    ['10.96.0.10:53', `${B}:1053`],
    ['192.0.2.9:53', `${A}:1053`],
    ['192.168.1.7:30053', `${A}:1053`],
    // Another port of the endpoint, and places of others.
    ['10.96.0.10:53', `${A}:9999`],
    ['10.96.0.11:53', `${A}:1053`],
    ['10.96.0.10:54', `${A}:1053`],
    [`${A}:1053`, `${A}:1053`],
  ] as const
  return cases
    .filter(([to, by]) => {
      const each = flow('10.1.0.5:4000', to, by, { protocol: 'TCP', isHalfOpen })
      return (
        book?.concerns(each.destination, each.destinationPort) === true && book.judge(each).kind === 'stale'
      )
    })
    .map(([to, by]) => `${to} = ${by}`)
}

const ALL_TO_A = ['10.96.0.10:53', '192.0.2.9:53', '192.168.1.7:30053'].map(to => `${to} = ${A}:1053`)

describe('a connection attempt without an answer', () => {
  it.each([
    ['is gone', of(slice({ [B]: READY }))],
    ['is neither ready nor serving', of(slice({ [A]: UNREADY, [B]: READY }))],
    ['is gone with the last one', of(slice({}))],
    ['is gone with its slice', of(slice({ [B]: READY }, 'dns-b'))],
  ])('is stale at every address of the Service when its endpoint %s', (_, now) => {
    expect(stale([both], now)).toEqual(expect.arrayContaining(ALL_TO_A))
    expect(stale([both], now, false)).toEqual([])
  })

  it('is kept where the Service has left an address, which another one may have taken with the same endpoint', () => {
    const inside = dns({ type: 'NodePort', ports: PORTS })
    expect(stale([both], view([inside, slice({ [B]: READY })]))).toEqual([ALL_TO_A[0], ALL_TO_A[2]])
  })

  it('is kept to every endpoint that stays', () => {
    expect(stale([both], of(slice({ [B]: READY, [C]: READY })))).toEqual(ALL_TO_A)
  })

  it('is stale when the last endpoint terminated while it served, and then went', () => {
    expect(stale([of(slice({ [A]: SERVING }))], of(slice({})))).toEqual(ALL_TO_A)
  })

  it('F218 is stale when its endpoint terminated as the last one of this node of a policy Local, and then went', () => {
    const local = dns({ type: 'NodePort', externalTrafficPolicy: 'Local', ports: PORTS })
    const [here, elsewhere] = [
      { addresses: [A], conditions: SERVING, nodeName: 'here' },
      { addresses: [B], conditions: READY, nodeName: 'there' },
    ]
    const ready = { addresses: [C], conditions: READY, nodeName: 'here' }
    const at = (...endpoints: readonly object[]) =>
      view([local, dnsSlice({}, { endpoints, ports: [{ name: 'dns', port: 1053, protocol: 'TCP' }] })])
    expect(stale([at(here, elsewhere)], at(ready, elsewhere))).toContain(ALL_TO_A[2])
    // Beside a ready one of this node it gets no new connections.
    expect(looked([at(here, ready)], at(ready))).toBeUndefined()
  })

  it('F218 is kept at a node port number that is a port of another Service with the same endpoint', () => {
    const other = { ...service, metadata: { name: 'other', namespace: 'ns' } }
    const spec = { clusterIP: '192.168.1.7', ports: [{ name: 'dns', port: 30053, protocol: 'TCP' }] }
    const now = view([service, slice({ [B]: READY }), { ...other, spec }])
    expect(stale([both], now)).toEqual(ALL_TO_A.slice(0, 2))
  })

  it('is not looked for when an endpoint goes that terminated beside one that is ready', () => {
    const terminating = of(slice({ [A]: SERVING, [B]: READY }))
    expect(looked([terminating], of(slice({ [B]: READY })))).toBeUndefined()
    expect(stale([both, terminating], of(slice({ [B]: READY })))).toEqual(ALL_TO_A)
  })

  it('is stale when all endpoints listen at another port now', () => {
    expect(stale([both], of(slice({ [A]: READY, [B]: READY }, 'dns-a', 9999)))).toContain(ALL_TO_A[0])
  })

  it('is stale when its endpoint came and went between two passes, and kept when it went and came', () => {
    const [one, none] = [of(slice({ [B]: READY })), of(slice({}))]
    expect(stale([one, both], one)).toEqual(ALL_TO_A)
    expect(stale([both, none], both)).toEqual([])
  })

  it.each([
    ['an endpoint was added', of(slice({ [A]: READY, [B]: READY, [C]: READY }))],
    ['an endpoint terminates and serves', of(slice({ [A]: SERVING, [B]: READY }))],
    ['an endpoint moved to another slice', of(slice({ [B]: READY }), slice({ [A]: READY }, 'dns-b'))],
    ['the Service is gone', view([], both, { remove: ['ns/dns'] })],
    ['the Service is elsewhere', view([dns({ clusterIP: '10.96.0.12', ports: PORTS })], both)],
  ])('is not looked for when %s', (_, now) => {
    expect(looked([both], now)).toBeUndefined()
  })

  it('is not looked for when an endpoint left one of the two slices that list it', () => {
    const twice = of(slice({ [A]: READY }), slice({ [A]: READY }, 'dns-b'))
    expect(looked([twice], view([slice({})], twice))).toBeUndefined()
  })
})
