import { describe, expect, it } from 'vitest'
import type { UnansweredRow } from '../../../../src/inspect/live/unanswered-rows.ts'
import { whyText } from '../../../../src/inspect/why/why.ts'
import { pictureOf, svgText } from '../../../../src/inspect/why/why-picture.ts'
import { DRAINING, type Fields, service, UNREADY } from '../../model/objects.ts'
import { unansweredRow } from '../live/rows.ts'
import {
  ABSENT,
  type Asked,
  BALANCED,
  different,
  explain,
  nth,
  ready,
  SAME,
  STICKY,
  THERE,
  unready,
  web,
} from './explained.ts'

const RANGES = { type: 'LoadBalancer', loadBalancerSourceRanges: ['10.0.0.0/8'] }
const NAMED = [
  { name: 'http', port: 80 },
  { name: 'dns', port: 53, protocol: 'UDP' },
]
const LOCAL_ONLY = { type: 'LoadBalancer', externalTrafficPolicy: 'Local' }

describe('the answer', () => {
  it.each<[string, readonly Fields[], Asked?]>([
    ['served: always 10.1.0.1:8080', web([ready(1)])],
    ['served: any of 2 endpoints, a half each', web([ready(1), ready(2)])],
    ['served: any of 7 endpoints, 14.29 % each', web([1, 2, 3, 4, 5, 6, 7].map(last => ready(last)))],
    [
      'served: always 10.1.0.1:8080; a client stays with its endpoint for 10800 s; 2 of 3 are not ready',
      web([ready(1), unready(2), unready(3)], STICKY),
    ],
    [
      'served: always 10.1.0.2:8080; 1 of 2 is terminating while another endpoint is ready',
      web([ready(1, { conditions: DRAINING }), ready(2)]),
    ],
    [
      'served: any of 257 endpoints, 0.39 % each; 43 of 300 are not ready',
      web(Array.from({ length: 300 }, (_, index) => nth(index, index < 257 ? {} : { conditions: UNREADY }))),
      { from: 'node/here' },
    ],
    [
      'ns/web has no ready endpoint: 1 of 2 is not ready, 1 of 2 is terminating and no longer serving; the connection is rejected',
      web([unready(1), ready(2, { conditions: { ready: false, serving: false, terminating: true } })]),
    ],
    [
      'ns/web has no endpoint: no EndpointSlice lists one for its unnamed TCP port in IPv4; the connection is rejected',
      [service('web')],
    ],
    [
      'ns/web has no usable endpoint on this node, and its traffic policy is Local: 1 of 1 is not on this node; the connection is dropped',
      web([ready(1, THERE)], LOCAL_ONLY, BALANCED),
      { to: '198.51.100.9:80' },
    ],
    [
      'served: always 10.1.0.1:8080',
      web([ready(1, THERE)], LOCAL_ONLY, BALANCED),
      { from: 'node/here', to: '198.51.100.9:80' },
    ],
    [
      'not admitted: ns/web admits only 10.0.0.0/8, and 203.0.113.253 is outside',
      web([ready(1)], RANGES, BALANCED),
      { to: '198.51.100.9:80' },
    ],
    [
      'ns/web has no usable endpoint on this node, and its traffic policy is Local: 1 of 2 is not ready, 1 of 2 is not on this node; the connection is dropped',
      web([unready(1), ready(2, THERE)], { internalTrafficPolicy: 'Local' }),
    ],
    [
      'another address: ns/web has node port 30080 at 192.168.1.7 only (--nodeport-addresses)',
      web([ready(1)], { type: 'NodePort', ports: [{ port: 80, nodePort: 30_080 }] }),
      { to: '192.168.1.8:30080', localIps: ['192.168.1.7', '192.168.1.8'] },
    ],
    [
      'wrong port: ns/web has no port 81/TCP at 10.96.0.1; it has 80/TCP (http), 53/UDP (dns)',
      web([ready(1)], { ports: NAMED }),
      { to: 'svc/ns/web:81' },
    ],
    [
      'another proxy: ns/web is one that the proxy mesh serves (label service.kubernetes.io/service-proxy-name)',
      web([ready(1)], {}, { metadata: { labels: { 'service.kubernetes.io/service-proxy-name': 'mesh' } } }),
    ],
    [
      'refused since 2026-01-02 12:03 UTC: ns/web requests 192.168.1.7 (spec.externalIPs): it belongs to this node; allow it with --allowed-external-cidrs',
      web([ready(1)], { externalIPs: ['192.168.1.7'] }),
      { to: '192.168.1.7:80', refusedMs: Date.UTC(2026, 0, 2, 12, 3, 59) },
    ],
    [
      'refused: ns/x-thief requests 10.96.0.1:80/TCP (spec.clusterIPs): already claimed by Service ns/web, which comes first; the connection goes to 10.1.0.1:8080 of ns/web',
      [...web([ready(1)]), service('x-thief')],
      { to: 'ns/x-thief' },
    ],
    ['served: always 10.1.0.1:8080', [...web([ready(1)]), service('x-thief')], { to: 'ns/web' }],
    [
      'not forwarded: net.ipv4.ip_forward is 0, so this node drops packets that it should forward to an endpoint',
      web([ready(1)]),
      {
        kernel: different({
          part: 'forwarding',
          reason:
            'net.ipv4.ip_forward is 0, so this node drops packets that it should forward to an endpoint',
        }),
      },
    ],
    [
      'no Service has 192.168.1.7:22/TCP: the connection passes unchanged',
      web([ready(1)], { externalIPs: ['192.168.1.7'] }),
      { to: '192.168.1.7:22' },
    ],
    [
      'rules damaged: chain ip kube-proxy services is empty',
      web([ready(1)]),
      { kernel: different({ reason: 'chain ip kube-proxy services is empty' }) },
    ],
    [
      'rules differ: with those in the kernel the connection is rejected; by the Services it goes to 10.1.0.1:8080 or 10.1.0.2:8080',
      web([ready(1), ready(2)]),
      { kernel: different({}) },
    ],
    [
      'rules differ: with those in the kernel the connection is rejected; by the Services it goes to one of 4',
      web([ready(1), ready(2), ready(3), ready(4)]),
      { kernel: different({}) },
    ],
    [
      'not relayed: no process listens at 10.1.2.3:41000',
      web([ready(1)]),
      { kernel: different({ part: 'relay', reason: 'no process listens at 10.1.2.3:41000' }) },
    ],
    [
      'quarantined: the kernel rejects the rules of ns/web: ENOSPC',
      web([ready(1)]),
      { kernel: different({ reason: 'x' }), quarantined: new Map([['ns/web', 'ENOSPC']]) },
    ],
    [
      'quarantined: the kernel rejects the rules of ns/web: EOPNOTSUPP',
      web([ready(1)]),
      { kernel: different({ reason: 'x' }), quarantined: new Map([['IPv4', 'EOPNOTSUPP']]) },
    ],
    [
      "kprobe's rules serve it: any of 2 endpoints, a half each",
      web([ready(1), ready(2)]),
      { kernel: { ...SAME, others: ['ip foreign pre'] } },
    ],
    ['rules missing: rules of nftables mode are not in the kernel', web([ready(1)]), { kernel: ABSENT }],
    [
      'would be served: always 10.1.0.1:8080; rules of nftables mode are not in the kernel',
      web([ready(1)]),
      { kernel: ABSENT, hasDaemon: false },
    ],
    [
      'ns/web has no ready endpoint: 1 of 1 is not ready; the connection would be rejected; rules of nftables mode are not in the kernel',
      web([unready(1)]),
      { kernel: ABSENT, hasDaemon: false },
    ],
    [
      'no Service has 10.96.0.77:80/TCP: the connection would pass unchanged',
      web([ready(1)]),
      { to: '10.96.0.77:80', kernel: { kind: 'unknown', reason: 'EPERM' } },
    ],
    [
      'would be served: always 10.1.0.1:8080',
      web([ready(1)]),
      { kernel: { kind: 'unknown', reason: 'EPERM' } },
    ],
  ])('is: %s', (expected, objects, asked = {}) => {
    expect(explain(objects, asked).answer).toBe(expected)
  })
})

const ASKED = { from: 'outside', to: 'svc/ns/web' }
const PLAIN = { color: false, columns: undefined }
const STEP = { chain: 'ip kube-proxy x', rule: 7, text: 'counter drop', elements: [] }

describe('the text', () => {
  const objects = web([ready(1), unready(2, { nodeName: 'th\u202eere\u001b[2J' })])

  it('has the answer, the path, each endpoint with its share and its reason, and what is not known', () => {
    const text = whyText(explain(objects, { notKnown: ['changes of the last 70 s: x'] }), ASKED, PLAIN)
    expect(text).toMatch(/^served: always 10\.1\.0\.1:8080; 1 of 2 is not ready\n\nTCP from outside \(203\./)
    expect(text).toContain(' to svc/ns/web (10.96.0.1:80)\nService: ns/web (ClusterIP)\n')
    expect(text).toMatch(/\nPath, the same in the kernel:\n {2}ip kube-proxy early-prerouting, rule 1: jump/)
    expect(text).toContain('\nEndpoints, traffic policy Cluster:\n  100 %  10.1.0.1:8080 on here: ready\n')
    expect(text).toContain('\n  out    10.1.0.2:8080 on th\\u{202e}ere\\u{1b}[2J: not ready\n')
    expect(text).toContain('\nNot known:\n  changes of the last 70 s: x\n')
  })

  it('shows the path in the kernel where that differs, and no share', () => {
    const text = whyText(explain(objects, { kernel: different({ rules: [STEP] }) }), ASKED, PLAIN)
    expect(text).toContain('\nPath in the kernel:\n  ip kube-proxy x, rule 7: counter drop\n')
    expect(text).toContain('\n  in   10.1.0.1:8080 on here: ready\n')
    const none = whyText(explain(objects, { kernel: different({}) }), ASKED, PLAIN)
    expect(none).toContain('\nPath in the kernel:\n  no rule of kprobe takes effect\n')
  })

  it('shows the path in the kernel where that is another with the same end', () => {
    const text = whyText(explain(objects, { kernel: { ...SAME, rules: [STEP] } }), ASKED, PLAIN)
    expect(text).toContain(
      '\nPath in the kernel, by other rules than expected:\n  ip kube-proxy x, rule 7: counter drop\n',
    )
  })

  it('shows the path to the endpoint that is missing in the kernel', () => {
    const two = web([ready(1), ready(2)])
    const [first] = explain(two, {}).outcomes
    const kernel = different({ outcomes: first === undefined ? [] : [{ ...first, percent: 100 }] })
    const text = whyText(explain(two, { kernel }), ASKED, PLAIN)
    expect(text).toContain('\nPath in the kernel:\n')
    expect(text).toContain('\nPath to 10.1.0.2:8080, as the Services specify it:\n')
    expect(text).toMatch(/ : 10\.1\.0\.2 \. 8080\n/)
    const same = whyText(explain(two, {}), ASKED, PLAIN)
    expect(same).toContain('\nPath to 10.1.0.1:8080, the same in the kernel:\n')
  })

  it('in full shows both paths, and both sources, where the kernel treats the source otherwise', () => {
    const [wanted = expect.fail()] = explain(objects, {}).outcomes
    const kernel = different({ outcomes: [{ ...wanted, sourceReplaced: !wanted.sourceReplaced }] })
    const text = whyText(explain(objects, { kernel }), ASKED, { ...PLAIN, isFull: true })
    const [now, then] = wanted.sourceReplaced ? ['kept', 'one of the node'] : ['one of the node', 'kept']
    expect(text).toContain(`\nSource address: ${now} in the kernel, ${then} by the Services\n`)
    expect(text).toMatch(/\nPath in the kernel:\n.*\nPath, as the Services specify it:\n/s)
    const short = whyText(explain(objects, { kernel }), ASKED, PLAIN)
    expect(short).not.toContain('as the Services specify it')
  })

  it('says that a rejected client elsewhere may wait, by the sysctl of its family, and that processes here do not', () => {
    const asked = { from: 'outside', to: '10.96.0.1:80', columns: undefined }
    const text = (from: string) =>
      whyText(explain(web([unready(1)]), { from, localIps: ['192.0.2.1'] }), asked, {
        color: false,
        columns: undefined,
      })
    expect(text('outside')).toContain(
      'limits the rejections (ICMP) to one client address by net.ipv4.icmp_ratelimit',
    )
    expect(text('192.0.2.1')).not.toContain('icmp_ratelimit')
  })

  const ranged = web([ready(1)], RANGES, BALANCED)
  const dns = [
    service('dns', {
      ports: [
        { name: 'dns-udp', port: 53, protocol: 'UDP' },
        { name: 'dns-tcp', port: 53, protocol: 'TCP' },
      ],
    }),
  ]
  const others = (...chains: readonly string[]): Asked => ({ kernel: { ...SAME, others: chains } })

  it.each<[string, readonly Fields[], Asked, readonly string[]]>([
    [
      'of a kernel that cannot be read',
      objects,
      { kernel: { kind: 'unknown', reason: 'EPERM' } },
      ['what the kernel does: EPERM'],
    ],
    [
      'of the node of a client elsewhere',
      web([ready(1, { ...THERE, targetRef: { kind: 'Pod', name: 'client' } })]),
      { from: 'pod/ns/client' },
      ["what node there does: the client runs there, and its packets meet that node's rules first"],
    ],
    [
      'of a chain of another program',
      objects,
      others('ip foreign pre'),
      ['what chain ip foreign pre does with the packet; `kprobe verify --prove` follows it'],
    ],
    [
      'of many such chains',
      objects,
      others('ip a', 'ip b', 'ip c', 'ip d', 'ip e', 'ip f'),
      [
        'what chains ip a, ip b, ip c, ip d, ip e, 1 more do with the packet; `kprobe verify --prove` follows it',
      ],
    ],
    [
      'of clients outside, where source ranges admit some',
      ranged,
      { to: '198.51.100.9:80' },
      [
        "whether the source ranges admit the client: outside stands for 203.0.113.253; give the client's address",
      ],
    ],
    ['of a client with an address', ranged, { from: '203.0.113.253', to: '198.51.100.9:80' }, []],
    [
      'of another protocol at the port',
      dns,
      { to: 'ns/dns:53' },
      ['what happens to 53/TCP (dns-tcp): this is about 53/UDP; --proto selects another'],
    ],
    ['of a port with its protocol', dns, { to: 'ns/dns:53/TCP' }, []],
    ['of a port by its name', dns, { to: 'ns/dns:dns-tcp' }, []],
    [
      'of endpoints without conntrack',
      objects,
      { unanswered: { rows: [], seenS: 0, limits: 'conntrack cannot be read: EPERM' } },
      ['whether all endpoints answer: conntrack cannot be read: EPERM'],
    ],
  ])('says what is not known %s', (_, its, asked, notKnown) => {
    expect(explain(its, asked).notKnown).toEqual(notKnown)
  })

  it('fits into 80 columns, and has a color only on a terminal', () => {
    const text = whyText(explain(objects, {}), ASKED, { color: true, columns: 80 })
    expect(text.startsWith('\u001b[32mserved: ')).toBe(true)
    expect(text.split('\n')[0]?.endsWith('\u001b[0m')).toBe(true)
    expect(text.split('\n').filter(line => line.length > 80 && !line.startsWith('\u001b'))).toEqual([])
    expect(whyText(explain(objects, {}), ASKED, { color: false, columns: 80 })).not.toContain('\u001b')
  })

  it('counts endpoints beyond 20, and names those first that are in', () => {
    const many = Array.from({ length: 30 }, (_, index) => (index < 15 ? unready : ready)(index + 1))
    const text = whyText(explain(web(many), {}), ASKED, PLAIN)
    expect(text).toMatch(/\n {2}6\.67 % {2}10\.1\.0\.16:8080 on here: ready\n/)
    expect(text).toContain('\n  and 10 more endpoints: 10 of 10 are not ready; -o json lists all\n')
    const full = whyText(explain(web(many), {}), ASKED, { ...PLAIN, isFull: true })
    expect(full.match(/^ {2}out +10\.1\.0\.\d+:8080 on here: not ready$/gm)).toHaveLength(15)
    expect(full).toMatch(/^Source address: one of the node$/m)
    expect(full).not.toContain('more endpoints')
  })
})

describe('the picture', () => {
  const objects = web([ready(1), unready(2, { nodeName: '"><&\\`#x' })])
  const picture = pictureOf(explain(objects, {}), ASKED)

  it('leads from the client over the rules to the ends', () => {
    const [client, place] = picture.path.map(({ lines }) => lines)
    expect([client, place]).toEqual([
      ['outside', '203.0.113.253'],
      ['10.96.0.1:80/TCP', 'ns/web (ClusterIP)'],
    ])
    expect(picture.ends).toEqual([
      { lines: ['10.1.0.1:8080', 'on here'], share: '100 %', isReached: true },
      { lines: ['10.1.0.2:8080', 'on "><&\\`#x'], share: 'out: not ready', isReached: false },
    ])
    const refused = pictureOf(explain([service('web')], {}), ASKED)
    expect(refused.ends).toEqual([{ lines: ['rejected'], share: '100 %', isReached: true }])
    const many = Array.from({ length: 30 }, (_, index) => ready(index + 1))
    const { ends } = pictureOf(explain(web(many), {}), ASKED)
    expect(ends.slice(-1)).toEqual([{ lines: ['10 more endpoints'], share: '', isReached: false }])
  })

  it('escapes markup in names', () => {
    const svg = svgText(picture)
    expect(svg).toContain('>on &#34;&#62;&#60;&#38;\\`#x</text>')
    expect(svg.match(/<rect /g)).toHaveLength(picture.path.length + 2)
    expect(svg.match(/class="out"/g)).toHaveLength(1)
    expect(svg).not.toMatch(/NaN|undefined/)
  })
})

describe('endpoints that do not answer', () => {
  const row = (last: number, counts: string, more: Partial<UnansweredRow> = {}) => {
    const [unanswered = 0, connections = 0] = counts.split('/').map(Number)
    const endpoint = `10.1.0.${last}:8080`
    return unansweredRow({ service: 'ns/web', endpoint, unanswered, connections, ...more })
  }
  const asked = (...rows: UnansweredRow[]) =>
    explain(web([ready(1), ready(2)]), { unanswered: { rows, seenS: 60 } })

  it.each([
    [
      'the rules send it to 2 endpoints; 41 of 41 connections to 10.1.0.2:8080 had no reply in the last minute',
      [row(2, '41/41')],
    ],
    [
      'the rules send it to 2 endpoints; 9 of 9 connections to 10.1.0.2:8080 had no reply in the last minute, and so had most to 1 more endpoint',
      [row(1, '3/4'), row(2, '9/9')],
    ],
    ['served: any of 2 endpoints, a half each', [row(2, '20/41')]],
    ['served: any of 2 endpoints, a half each', [row(3, '41/41')]],
    ['served: any of 2 endpoints, a half each', [row(2, '41/41', { isOneWay: true })]],
    ['served: any of 2 endpoints, a half each', [row(2, '41/41', { service: 'ns/other' })]],
  ])('%s', (answer, rows) => {
    expect(asked(...rows)).toMatchObject({ answer, isServed: true })
  })

  it.each([
    ['31', row(2, '41/41')],
    ['32', row(2, '20/41')],
  ])('color the first sentence: %s', (color, its) => {
    expect(whyText(asked(its), { from: '', to: '' }, { color: true }).slice(0, 5)).toBe(`\u001b[${color}m`)
  })

  it('are counted in their lines', () => {
    const text = whyText(asked(row(1, '1/9'), row(2, '5/5', { isOneWay: true })), ASKED, PLAIN)
    expect(text).toContain('10.1.0.1:8080 on here: ready; 1 of 9 connections had no reply in the last minute')
    expect(text).toMatch(
      /10\.1\.0\.2:8080 .*; 5 of 5 connections had .* \(the port has answered no client: .*\)/,
    )
  })

  it('do not hide damaged rules', () => {
    const unanswered = { rows: [row(1, '3/3')], seenS: 60 }
    expect(explain(web([ready(1)]), { kernel: different({}), unanswered }).answer).toMatch(/^rules differ/)
  })
})
