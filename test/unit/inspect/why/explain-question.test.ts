import { describe, expect, it } from 'vitest'
import { formatIp } from '../../../../src/base/ip.ts'
import { FlagReader, readArguments } from '../../../../src/config/flag.ts'
import {
  QUESTION_FLAGS,
  readQuestion,
  resolveQuestion,
} from '../../../../src/inspect/why/explain-question.ts'
import { requireHeld } from '../../../../src/inspect/why/explanation.ts'
import { endpoint, node, service, slice, snapshotOf } from '../../model/objects.ts'

const PORTS = [
  { name: 'http', port: 80 },
  { name: 'dns', port: 53, protocol: 'UDP' },
]
const SNAPSHOT = snapshotOf([
  service('web', { ports: PORTS, clusterIPs: ['10.96.0.1', 'fd00::1'] }),
  service('one', { clusterIP: '10.96.0.2', ports: [{ port: 53, protocol: 'UDP' }] }),
  service('headless', { clusterIP: 'None' }),
  service('elsewhere', { type: 'ExternalName', externalName: 'example.com' }),
  // Not sorted by address: names follow their endpoints.
  node({ ips: ['192.168.1.7', 'fd01::7'] }),
  service('six', { clusterIP: 'fd00::6' }),
  slice('web-1', 'web', [
    endpoint('10.1.0.9', { nodeName: 'there', targetRef: { kind: 'Pod', name: 'web-b' } }),
    endpoint('10.1.0.8'),
    endpoint('10.1.0.7', { targetRef: { kind: 'Pod', name: 'web-a' } }),
  ]),
])

const LOADED = { type: 'LoadBalancer', ports: [{ port: 80, nodePort: 30080 }] }
const INGRESS = { status: { loadBalancer: { ingress: [{ ip: '192.0.2.9' }] } } }

function readerOf(from: string, to: string, rest: readonly string[] = []): FlagReader {
  const argv = [`--from=${from}`, `--to=${to}`, ...rest]
  return new FlagReader(readArguments(argv, QUESTION_FLAGS))
}

function questionOf(from: string, to: string) {
  return readQuestion(readerOf(from, to)) ?? expect.fail('no question')
}

function asked(from: string, to: string, ...rest: readonly string[]): string {
  const reader = readerOf(from, to, rest)
  const question = readQuestion(reader)
  if (question === undefined || reader.errors.length > 0)
    return reader.errors.map(({ path, message }) => `${path}: ${message}`).join('; ')
  const found = resolveQuestion(question, SNAPSHOT)
  return `${formatIp(found.from)} ${formatIp(found.to)} ${found.port}/${found.protocol.name}`
}

describe('a question', () => {
  it('without a client is about a process of this node', () => {
    expect(asked('', '10.96.0.1:80')).toBe('192.168.1.7 10.96.0.1 80/TCP')
    expect(asked('', '[fd00::1]:80')).toBe('fd01::7 fd00::1 80/TCP')
    const question = questionOf('', '10.96.0.1:80')
    expect(formatIp(resolveQuestion(question, snapshotOf([])).from)).toBe('127.0.0.1')
  })

  it.each([
    ['an address of a load balancer', { ...LOADED, externalIPs: ['192.0.2.8'] }, INGRESS, '192.0.2.9 80'],
    ['an external IP', { externalIPs: ['192.0.2.8'] }, {}, '192.0.2.8 80'],
    ['a node port', { type: 'NodePort', ports: [{ port: 80, nodePort: 30080 }] }, {}, '192.168.1.7 30080'],
    ['its ClusterIP where it has nothing else', {}, {}, '10.96.0.1 80'],
  ])('from outside is about %s', (_, spec, more, expected) => {
    const question = questionOf('outside', 'ns/web')
    const snapshot = snapshotOf([service('web', { clusterIP: '10.96.0.1', ...spec }, more), node({})])
    const { from, to, port } = resolveQuestion(question, snapshot)
    expect(`${formatIp(to)} ${port}`).toBe(expected)
    expect(from.length).toBe(to.length)
  })

  it('F150: about a Service that the daemon does not hold is answered with its refusal', () => {
    const refused = { object: 'Service ns/new', field: '', value: '', reason: 'no room', service: 'ns/new' }
    const known = { snapshot: SNAPSHOT, refusedObjects: [refused] }
    const about = (name: string) => requireHeld(questionOf('outside', name), known)
    expect(() => about('ns/new:80')).toThrow('Service ns/new is not served: no room')
    expect(() => about('ns/web:80')).not.toThrow()
    expect(() => about('ns/unknown:80')).not.toThrow()
  })

  it.each([
    ['pod/web-b', 'svc/web:80'],
    ['pod/web-b', 'web:http'],
    ['pod/ns/web-b', 'service/web:80'],
    ['pod/web-b', 'web.ns.svc:80'],
    ['10.1.0.9', 'ns/web:80'],
  ])('from %s to %s takes the namespace of --namespace where a name has none', (from, to) => {
    expect(asked(from, to, '-n', 'ns')).toBe('10.1.0.9 10.96.0.1 80/TCP')
  })

  it('refuses a namespace that is none', () => {
    expect(asked('outside', 'web', '-n', 'a/b')).toContain(
      '--namespace: "a/b" is not the name of a namespace',
    )
  })

  it.each([
    ['192.0.2.1', '10.96.0.1:80', '192.0.2.1 10.96.0.1 80/TCP'],
    ['2001:db8::1', '[fd00::1]:80', '2001:db8::1 fd00::1 80/TCP'],
    ['192.0.2.1', 'svc/ns/web:http', '192.0.2.1 10.96.0.1 80/TCP'],
    ['192.0.2.1', 'ns/web:dns', '192.0.2.1 10.96.0.1 53/UDP'],
    ['2001:db8::1', 'ns/web:http', '2001:db8::1 fd00::1 80/TCP'],
    ['192.0.2.1', 'ns/one', '192.0.2.1 10.96.0.2 53/UDP'],
    ['192.0.2.1', 'web.ns.svc.cluster.local:http', '192.0.2.1 10.96.0.1 80/TCP'],
    ['192.0.2.1', 'web.ns:dns', '192.0.2.1 10.96.0.1 53/UDP'],
    ['192.0.2.1', '10.96.0.1:53/UDP', '192.0.2.1 10.96.0.1 53/UDP'],
    ['192.0.2.1', 'ns/web:80/SCTP', '192.0.2.1 10.96.0.1 80/SCTP'],
    ['pod/ns/web-a', 'web.ns.svc:http', '10.1.0.7 10.96.0.1 80/TCP'],
    ['pod/ns/web-b', 'pod/ns/web-a:8080', '10.1.0.9 10.1.0.7 8080/TCP'],
    ['outside', 'svc/ns/one', '203.0.113.253 10.96.0.2 53/UDP'],
    ['outside', 'ns/six', '2001:db8::fc fd00::6 80/TCP'],
    ['outside', '[fd00::1]:80', '2001:db8::fc fd00::1 80/TCP'],
    ['node/here', 'ns/six', 'fd01::7 fd00::6 80/TCP'],
    ['node/here', 'ns/web:http', '192.168.1.7 10.96.0.1 80/TCP'],
    ['outside', 'node/here:30080', '203.0.113.253 192.168.1.7 30080/TCP'],
    ['2001:db8::1', 'node/here:30080/udp', '2001:db8::1 fd01::7 30080/UDP'],
  ])('from %s to %s means %s', (from, to, means) => {
    expect(asked(from, to)).toBe(means)
  })

  it('takes the protocol of the port that is named, unless --proto says otherwise', () => {
    expect(asked('192.0.2.1', 'ns/web', '--proto=udp')).toBe('192.0.2.1 10.96.0.1 53/UDP')
    expect(asked('192.0.2.1', 'ns/web:80', '--proto=sctp')).toBe('192.0.2.1 10.96.0.1 80/SCTP')
  })

  it('has one protocol', () => {
    expect(asked('192.0.2.1', 'ns/web:53/udp', '--proto=udp')).toBe('192.0.2.1 10.96.0.1 53/UDP')
    expect(asked('192.0.2.1', 'ns/web:53/udp', '--proto=tcp')).toBe('--proto: is TCP while --to has UDP')
  })

  it.each([
    ['ns/webb:80', 'no Service "ns/webb"; did you mean ns/web?'],
    ['ns/web', 'Service ns/web has more than one port: add :PORT; its ports are 80/TCP (http), 53/UDP (dns)'],
    ['ns/web:https', 'Service ns/web has no port "https"; its ports are 80/TCP (http), 53/UDP (dns)'],
    ['ns/headless:80', 'Service ns/headless is headless: it has no address and no rule'],
    ['ns/elsewhere', 'Service ns/elsewhere is of type ExternalName: it has no address and no rule'],
    [
      'pod/ns/client:80',
      'no EndpointSlice has an IPv4 address of pod ns/client; give its address: kubectl get pod -o wide',
    ],
    [
      'pod/ns/web-c:80',
      'no EndpointSlice has an IPv4 address of pod ns/web-c; give its address: kubectl get pod -o wide; did you mean ns/web-a?',
    ],
    [
      'node/there:80',
      'Node "there" is not known here, only here, the Node of this machine; give its address',
    ],
  ])('cannot be answered: to %s', (to, message) => {
    expect(() => asked('192.0.2.1', to)).toThrow(message)
  })

  it('names the family that a Service lacks', () => {
    expect(() => asked('2001:db8::1', 'ns/one')).toThrow('Service ns/one has no IPv6 address')
  })

  it.each([
    ['192.0.2.1', '10.96.0.1', '--to: needs a port from 1 to 65535'],
    ['192.0.2.1', '10.96.0.1:53/icmp', '--to: "icmp" is not one of tcp, udp, sctp'],
    ['192.0.2.1', '10.96.0.300:80', '--to: "10.96.0.300" is not an IP address'],
    ['192.0.2.1', 'pod/ns/web-a:http', '--to: needs a port from 1 to 65535'],
    [
      '192.0.2.1',
      'web',
      '--to: "web" is a name without its kind or namespace; give ADDRESS:PORT, NAMESPACE/SERVICE',
    ],
    ['192.0.2.1', '', '--to: is required; give ADDRESS:PORT, '],
    ['ns/web', '10.96.0.1:80', '--from: a client is an address, pod/NAMESPACE/NAME, node/NAME or outside'],
    ['192.0.2.1', 'outside', '--to: give ADDRESS:PORT, NAMESPACE/SERVICE'],
    ['192.0.2.1', 'node/here', '--to: needs a port from 1 to 65535'],
    ['2001:db8::1', '10.96.0.1:80', '--to: is IPv4 while --from is IPv6'],
  ])('is refused: from %s to %s', (from, to, message) => {
    expect(asked(from, to)).toContain(message)
  })
})
