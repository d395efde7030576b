import type { NftFamily } from '../../src/kernel/nft/state.ts'
import type { XtMatch, XtPorts, XtRule, XtTarget } from '../../src/kernel/xt/rule.ts'
import type { XtTableName } from '../../src/kernel/xt/scope.ts'
import { address, ipOf, odd, ports } from './xt-words.ts'

/** A rule beside what iptables is told for it, from behind `-A CHAIN`. */
export interface WrittenRule {
  readonly table: XtTableName
  readonly chain: string
  readonly words: string
  readonly rule: XtRule
}

/** Chains that rules of these tables jump to. */
export const JUMPED_TO = [
  'KUBE-MARK-MASQ',
  'KUBE-SEP-AAAAAAAAAAAAAAAA',
  'A',
  'chain-of-twenty-eight-letters'.slice(0, 28),
]
/** Sets of both families that they ask: hash:ip,port. */
export const SETS = { ip: ['KUBE-CLUSTER-IP', 'one'], ip6: ['KUBE-6-CLUSTER-IP', 'one-6'] } as const
export const COUNTERS = ['ct_state_invalid_dropped_pkts', 'short']

type Parts = Partial<XtRule>

function rule(parts: Parts): XtRule {
  return { matches: [], target: { kind: 'ACCEPT' }, ...parts }
}

const tcp = { number: 6, inverted: false } as const
const udp = { number: 17, inverted: false } as const
const sctp = { number: 132, inverted: false } as const
const comment = (text: string): XtMatch => ({ kind: 'comment', text })
const states = (bits: number, inverted = false): XtMatch => ({ kind: 'conntrack', states: bits, inverted })
const chance = (probability: number): XtMatch => ({ kind: 'statistic', probability })
const jump = (chain: string): XtTarget => ({ kind: 'jump', chain })

const filter = (words: string, parts: Parts): WrittenRule => ({
  table: 'filter',
  chain: 'FORWARD',
  words: parts.target === undefined && !('target' in parts) ? `${words} -j ACCEPT` : words,
  rule: rule(parts),
})

const nat = (chain: string, words: string, parts: Parts): WrittenRule => ({
  table: 'nat',
  chain,
  words,
  rule: rule(parts),
})

const INTERFACES: readonly WrittenRule[] = [
  filter('-i lo', { inInterface: { name: 'lo', inverted: false } }),
  filter('! -i docker0', { inInterface: { name: 'docker0', inverted: true } }),
  filter('-i veth+', { inInterface: { name: 'veth+', inverted: false } }),
  filter('! -i veth+', { inInterface: { name: 'veth+', inverted: true } }),
  filter('-i v+', { inInterface: { name: 'v+', inverted: false } }),
  filter('-o +', { outInterface: { name: '+', inverted: false } }),
  filter('! -i +', { inInterface: { name: '+', inverted: true } }),
  filter('-i abcdefghijklmno', { inInterface: { name: 'abcdefghijklmno', inverted: false } }),
  filter('-i abcdefghijklmn+', { inInterface: { name: 'abcdefghijklmn+', inverted: false } }),
  filter('-i eth1 -o eth0', {
    inInterface: { name: 'eth1', inverted: false },
    outInterface: { name: 'eth0', inverted: false },
  }),
  filter('! -o cni0 -i +', {
    inInterface: { name: '+', inverted: false },
    outInterface: { name: 'cni0', inverted: true },
  }),
]

const PROTOCOLS: readonly WrittenRule[] = [
  ...[1, 2, 4, 6, 17, 33, 47, 50, 58, 89, 103, 112, 132, 136, 250, 255].map(number =>
    filter(`-p ${number}`, { protocol: { number, inverted: false } }),
  ),
  filter('! -p tcp', { protocol: { number: 6, inverted: true } }),
  filter('! -p 200', { protocol: { number: 200, inverted: true } }),
]

const V4_PREFIXES: readonly WrittenRule[] = Array.from({ length: 33 }, (_, bits) =>
  filter(`-s 172.21.85.171/${bits}`, { source: address('172.21.85.171', bits) }),
)

const V4_ADDRESSES: readonly WrittenRule[] = [
  ...Array.from({ length: 8 }, (_, at) =>
    filter(`! -d 172.21.85.171/${at * 4 + 4}`, { destination: address('172.21.85.171', at * 4 + 4, true) }),
  ),
  filter('-d 0.0.0.255/0.0.0.255', { destination: odd('0.0.0.255', '0.0.0.255') }),
  filter('-s 10.9.8.7/255.0.255.0', { source: odd('10.0.8.0', '255.0.255.0') }),
  filter('-s 10.0.0.1 ! -d 10.0.0.0/8 -i lo ! -p udp', {
    source: address('10.0.0.1', 32),
    destination: address('10.0.0.0', 8, true),
    inInterface: { name: 'lo', inverted: false },
    protocol: { number: 17, inverted: true },
  }),
]

const V6_ADDRESSES: readonly WrittenRule[] = [
  ...[0, 1, 7, 8, 12, 16, 31, 32, 48, 56, 60, 64, 65, 96, 104, 112, 120, 127, 128].map(bits =>
    filter(`-s 2001:db8:5555:aaaa:1234:5678:9abc:def1/${bits}`, {
      source: address('2001:db8:5555:aaaa:1234:5678:9abc:def1', bits),
    }),
  ),
  filter('! -d fd00::/12', { destination: address('fd00::', 12, true) }),
  filter('! -s ::1 ! -d fe80::/10', {
    source: address('::1', 128, true),
    destination: address('fe80::', 10, true),
  }),
  filter('-s ff::1/ff::ff', { source: odd('ff::1', 'ff::ff') }),
  filter('-s ::1.2.3.4', { source: address('::102:304', 128) }),
  filter('-s ::ffff:1.2.3.4', { source: address('::ffff:1.2.3.4', 128) }),
]

type PortsKind = 'tcp' | 'udp'
const PROTOCOL_OF = { tcp, udp } as const

const PORTS: readonly WrittenRule[] = (['tcp', 'udp'] as const).flatMap((kind: PortsKind) => {
  const one = (words: string, asked: { readonly from?: XtPorts; readonly to?: XtPorts }): WrittenRule =>
    filter(`-p ${kind} -m ${kind} ${words}`, {
      protocol: PROTOCOL_OF[kind],
      matches: [
        {
          kind,
          ...(asked.from === undefined ? {} : { sourcePorts: asked.from }),
          ...(asked.to === undefined ? {} : { destinationPorts: asked.to }),
        },
      ],
    })
  return [
    one('', {}),
    one('--dport 80', { to: ports(80) }),
    one('! --dport 80', { to: ports(80, 80, true) }),
    one('--dport 0', { to: ports(0) }),
    one('--dport 65535', { to: ports(65_535) }),
    one('--dport 90:100', { to: ports(90, 100) }),
    one('! --dport 90:100', { to: ports(90, 100, true) }),
    one('--dport 0:100', { to: ports(0, 100) }),
    one('--dport 100:', { to: ports(100, 65_535) }),
    one('--sport 53', { from: ports(53) }),
    one('! --sport 1:5', { from: ports(1, 5, true) }),
    one('--sport 80 --dport 90', { from: ports(80), to: ports(90) }),
    one('! --sport 80 ! --dport 90', { from: ports(80, 80, true), to: ports(90, 90, true) }),
    one('--sport 80 ! --dport 90', { from: ports(80), to: ports(90, 90, true) }),
    one('--sport 0 --dport 90', { from: ports(0), to: ports(90) }),
    one('--sport 1:2 --dport 90', { from: ports(1, 2), to: ports(90) }),
    one('--sport 7:9 --dport 3:4', { from: ports(7, 9), to: ports(3, 4) }),
  ]
})

const SCTP: readonly WrittenRule[] = [
  filter('-p sctp -m sctp', { protocol: sctp, matches: [{ kind: 'sctp' }] }),
  filter('-p sctp -m sctp --dport 80', {
    protocol: sctp,
    matches: [{ kind: 'sctp', destinationPorts: ports(80) }],
  }),
  filter('-p sctp -m sctp --sport 80:90 ! --dport 1', {
    protocol: sctp,
    matches: [{ kind: 'sctp', sourcePorts: ports(80, 90), destinationPorts: ports(1, 1, true) }],
  }),
  filter('-p sctp -m sctp --dport 0:65535', {
    protocol: sctp,
    matches: [{ kind: 'sctp', destinationPorts: ports(0, 65_535) }],
  }),
]

const MARKS: readonly WrittenRule[] = [
  filter('-m mark --mark 0x4000/0x4000', {
    matches: [{ kind: 'mark', mark: 0x4000, mask: 0x4000, inverted: false }],
  }),
  filter('-m mark ! --mark 0x4000/0x4000', {
    matches: [{ kind: 'mark', mark: 0x4000, mask: 0x4000, inverted: true }],
  }),
  filter('-m mark --mark 5', { matches: [{ kind: 'mark', mark: 5, mask: 0xffffffff, inverted: false }] }),
  filter('-m mark ! --mark 0', { matches: [{ kind: 'mark', mark: 0, mask: 0xffffffff, inverted: true }] }),
  filter('-m mark --mark 0x1234/0', { matches: [{ kind: 'mark', mark: 0x1234, mask: 0, inverted: false }] }),
  filter('-m mark --mark 0xfedcba98/0xf0000000', {
    matches: [{ kind: 'mark', mark: 0xfedcba98, mask: 0xf0000000, inverted: false }],
  }),
]

const CONNTRACK: readonly WrittenRule[] = [
  filter('-m conntrack --ctstate NEW', { matches: [states(8)] }),
  filter('-m conntrack ! --ctstate NEW', { matches: [states(8, true)] }),
  filter('-m conntrack --ctstate RELATED,ESTABLISHED', { matches: [states(6)] }),
  filter('-m conntrack --ctstate INVALID', { matches: [states(1)] }),
  filter('-m conntrack ! --ctstate RELATED,ESTABLISHED,DNAT', { matches: [states(0x86, true)] }),
  filter('-m conntrack --ctstate DNAT,SNAT,UNTRACKED,NEW,INVALID', { matches: [states(0x1c9)] }),
]

const TEXTS = [
  'plain',
  'default/kubernetes:https cluster IP',
  "it's",
  'say "so"',
  'back\\slash',
  'é ü',
  'x'.repeat(255),
]

const COMMENTS: readonly WrittenRule[] = [
  ...TEXTS.map(text => filter(`-m comment --comment ${shellQuoted(text)}`, { matches: [comment(text)] })),
  filter('-m comment --comment ""', { matches: [comment('')] }),
]

/** For the command line of iptables-restore. */
function shellQuoted(text: string): string {
  return `"${text.replace(/["\\]/g, '\\$&')}"`
}

/** The probabilities that kube-proxy asks for, with ten decimals, and those that lie between two numbers of 11. */
const STATISTICS: readonly WrittenRule[] = [
  ...[2, 3, 4, 5, 6, 7, 9, 10, 11, 13, 50, 99, 100, 333].map(endpoints => {
    const asked = (1 / endpoints).toFixed(10)
    return filter(`-m statistic --mode random --probability ${asked}`, {
      matches: [chance(Math.round(Number(asked) * 2 ** 31))],
    })
  }),
  filter('-m statistic --mode random --probability 1', { matches: [chance(2 ** 31)] }),
  filter('-m statistic --mode random --probability 0', { matches: [chance(0)] }),
  filter('-m statistic --mode random --probability 0.000244140625', { matches: [chance(2 ** 19)] }),
  filter('-m statistic --mode random --probability 0.000732421875', { matches: [chance(3 * 2 ** 19)] }),
]

const RECENT: readonly WrittenRule[] = [
  'KUBE-SEP-AAAAAAAAAAAAAAAA',
  'DEFAULT',
  'A',
  'ABCDEF',
  'n'.repeat(199),
].flatMap(name => [
  filter(`-m recent --name ${name} --set`, {
    matches: [{ kind: 'recent', mode: 'set', name, seconds: 0, reap: false }],
  }),
  filter(`-m recent --name ${name} --rcheck --seconds 10800 --reap`, {
    matches: [{ kind: 'recent', mode: 'rcheck', name, seconds: 10_800, reap: true }],
  }),
  filter(`-m recent --name ${name} --rcheck`, {
    matches: [{ kind: 'recent', mode: 'rcheck', name, seconds: 0, reap: false }],
  }),
])

const ADDRTYPES: readonly WrittenRule[] = [
  filter('-m addrtype --dst-type LOCAL', {
    matches: [{ kind: 'addrtype', sourceTypes: 0, destinationTypes: 4 }],
  }),
  filter('-m addrtype --src-type LOCAL', {
    matches: [{ kind: 'addrtype', sourceTypes: 4, destinationTypes: 0 }],
  }),
  filter('-m addrtype ! --src-type LOCAL', {
    matches: [{ kind: 'addrtype', sourceTypes: 4, destinationTypes: 0, sourceInverted: true }],
  }),
  filter('-m addrtype --src-type UNICAST,MULTICAST ! --dst-type ANYCAST,LOCAL', {
    matches: [{ kind: 'addrtype', sourceTypes: 0x22, destinationTypes: 0x14, destinationInverted: true }],
  }),
]

const OTHERS: readonly WrittenRule[] = [
  filter('-m physdev --physdev-is-in', { matches: [{ kind: 'physdev-is-in', inverted: false }] }),
  filter('-m physdev ! --physdev-is-in', { matches: [{ kind: 'physdev-is-in', inverted: true }] }),
  ...COUNTERS.map(name => filter(`-m nfacct --nfacct-name ${name}`, { matches: [{ kind: 'nfacct', name }] })),
]

const TARGETS: readonly WrittenRule[] = [
  filter('-j DROP', { target: { kind: 'DROP' } }),
  filter('-j RETURN', { target: { kind: 'RETURN' } }),
  { ...filter('', { target: undefined }), words: '' },
  ...JUMPED_TO.flatMap(chain => [
    filter(`-j ${chain}`, { target: jump(chain) }),
    filter(`-g ${chain}`, { target: { kind: 'goto', chain } }),
  ]),
  filter('-j MARK --or-mark 0x4000', { target: { kind: 'MARK', value: 0x4000, mask: 0x4000 } }),
  filter('-j MARK --xor-mark 0x4000', { target: { kind: 'MARK', value: 0x4000, mask: 0 } }),
  filter('-j MARK --set-mark 1', { target: { kind: 'MARK', value: 1, mask: 0xffffffff } }),
  filter('-j MARK --set-xmark 0x80000000/0xff000000', {
    target: { kind: 'MARK', value: 0x80000000, mask: 0xff000000 },
  }),
]

/** What kube-proxy writes, of both families: docs of it call these sections 4.2 to 4.4, and 5.6 of IPVS. */
const KUBERNETES: readonly WrittenRule[] = [
  filter('-m conntrack --ctstate NEW -m comment --comment "kubernetes load balancer firewall" -j A', {
    matches: [states(8), comment('kubernetes load balancer firewall')],
    target: jump('A'),
  }),
  filter('-m comment --comment "kubernetes forwarding rules" -m mark --mark 0x4000/0x4000 -j ACCEPT', {
    matches: [
      comment('kubernetes forwarding rules'),
      { kind: 'mark', mark: 0x4000, mask: 0x4000, inverted: false },
    ],
    target: { kind: 'ACCEPT' },
  }),
  filter('-m conntrack --ctstate INVALID -m nfacct --nfacct-name ct_state_invalid_dropped_pkts -j DROP', {
    matches: [states(1), { kind: 'nfacct', name: 'ct_state_invalid_dropped_pkts' }],
    target: { kind: 'DROP' },
  }),
  filter('-p tcp -m comment --comment "ns/lb health check node port" -m tcp --dport 31000 -j ACCEPT', {
    protocol: tcp,
    matches: [comment('ns/lb health check node port'), { kind: 'tcp', destinationPorts: ports(31_000) }],
    target: { kind: 'ACCEPT' },
  }),
  nat('POSTROUTING', '-m mark ! --mark 0x4000/0x4000 -j RETURN', {
    matches: [{ kind: 'mark', mark: 0x4000, mask: 0x4000, inverted: true }],
    target: { kind: 'RETURN' },
  }),
  nat('POSTROUTING', '-j MASQUERADE', { target: { kind: 'MASQUERADE', randomFully: false } }),
  nat(
    'POSTROUTING',
    '-m comment --comment "kubernetes service traffic requiring SNAT" -j MASQUERADE --random-fully',
    {
      matches: [comment('kubernetes service traffic requiring SNAT')],
      target: { kind: 'MASQUERADE', randomFully: true },
    },
  ),
  nat(
    'PREROUTING',
    '-m comment --comment "ns/svc:p -> x" -m statistic --mode random --probability 0.3333333333 -j A',
    { matches: [comment('ns/svc:p -> x'), chance(715_827_883)], target: jump('A') },
  ),
  nat('PREROUTING', '-m comment --comment ns/svc:p -m recent --name A --rcheck --seconds 10800 --reap -j A', {
    matches: [
      comment('ns/svc:p'),
      { kind: 'recent', mode: 'rcheck', name: 'A', seconds: 10_800, reap: true },
    ],
    target: jump('A'),
  }),
]

function serviceRules(family: NftFamily): readonly WrittenRule[] {
  const [ip, bits, cluster] =
    family === 'ip' ? (['10.96.0.10', 32, '10.0.0.0/8'] as const) : (['fd00:96::a', 128, 'fd00::/8'] as const)
  const to = family === 'ip' ? '10.180.0.1:53' : '[fd00:180::1]:53'
  const bare = family === 'ip' ? '10.180.0.1' : 'fd00:180::1'
  const [prefix = '', length] = cluster.split('/')
  const service = { destination: address(ip, bits) }
  const text = comment('kube-system/kube-dns:dns cluster IP')
  const words = '-m comment --comment "kube-system/kube-dns:dns cluster IP"'
  const reject = family === 'ip' ? 'icmp-port-unreachable' : 'icmp6-port-unreachable'
  const kinds = [
    { kind: 'tcp' as const, protocol: tcp },
    { kind: 'udp' as const, protocol: udp },
    { kind: 'sctp' as const, protocol: sctp },
  ]
  return kinds.flatMap(({ kind, protocol }) => [
    nat('PREROUTING', `${words} -m ${kind} -p ${kind} -d ${ip} --dport 53 -j A`, {
      ...service,
      protocol,
      matches: [text, { kind, destinationPorts: ports(53) }],
      target: jump('A'),
    }),
    nat(
      'PREROUTING',
      `! -s ${cluster} -d ${ip} -p ${kind} ${words} -m ${kind} --dport 53 -j KUBE-MARK-MASQ`,
      {
        ...service,
        source: address(prefix, Number(length), true),
        protocol,
        matches: [text, { kind, destinationPorts: ports(53) }],
        target: jump('KUBE-MARK-MASQ'),
      },
    ),
    nat('PREROUTING', `-p ${kind} ${words} -m ${kind} -j DNAT --to-destination ${to}`, {
      protocol,
      matches: [text, { kind }],
      target: { kind: 'DNAT', ip: ipOf(bare), port: 53 },
    }),
    filter(`-d ${ip} -p ${kind} ${words} -m ${kind} --dport 53 -j REJECT`, {
      ...service,
      protocol,
      matches: [text, { kind, destinationPorts: ports(53) }],
      target: { kind: 'REJECT', with: reject },
    }),
  ])
}

function perFamily(family: NftFamily): readonly WrittenRule[] {
  const bare = family === 'ip' ? '10.180.0.1' : 'fd00:180::1'
  const [sets, source] = [SETS[family], family === 'ip' ? address(bare, 32) : address(bare, 128)]
  const rejects =
    family === 'ip'
      ? ['net-unreachable', 'host-unreachable', 'proto-unreachable', 'port-unreachable', 'net-prohibited']
          .concat(['host-prohibited', 'admin-prohibited'])
          .map(word => `icmp-${word}`)
      : [
          'no-route',
          'adm-prohibited',
          'addr-unreachable',
          'port-unreachable',
          'policy-fail',
          'reject-route',
        ].map(word => `icmp6-${word}`)
  return [
    nat('PREROUTING', `-j DNAT --to-destination ${bare}`, {
      target: { kind: 'DNAT', ip: ipOf(bare), port: 0 },
    }),
    nat('PREROUTING', `-s ${bare} -m comment --comment ns/svc:p -j KUBE-MARK-MASQ`, {
      source,
      matches: [comment('ns/svc:p')],
      target: jump('KUBE-MARK-MASQ'),
    }),
    ...rejects.map(word =>
      filter(`-j REJECT --reject-with ${word}`, { target: { kind: 'REJECT', with: word } }),
    ),
    filter('-p tcp -j REJECT --reject-with tcp-reset', {
      protocol: tcp,
      target: { kind: 'REJECT', with: 'tcp-reset' },
    }),
    ...sets.flatMap(set => [
      filter(`-m set --match-set ${set} dst,dst`, {
        matches: [{ kind: 'set', set, dimensions: ['dst', 'dst'], inverted: false }],
      }),
      filter(`-m set ! --match-set ${set} src`, {
        matches: [{ kind: 'set', set, dimensions: ['src'], inverted: true }],
      }),
      nat('PREROUTING', `-m comment --comment x -m set --match-set ${set} dst,dst,src -j A`, {
        matches: [comment('x'), { kind: 'set', set, dimensions: ['dst', 'dst', 'src'], inverted: false }],
        target: jump('A'),
      }),
    ]),
  ]
}

const SHARED = [
  ...INTERFACES,
  ...PROTOCOLS,
  ...PORTS,
  ...SCTP,
  ...MARKS,
  ...CONNTRACK,
  ...COMMENTS,
  ...STATISTICS,
  ...RECENT,
  ...ADDRTYPES,
  ...OTHERS,
  ...TARGETS,
  ...KUBERNETES,
]

/** Without what asks nothing: all addresses. */
export function asRead(rule: XtRule): XtRule {
  const { source, ...rest } = rule
  return source === undefined || /^\0+$/.test(source.mask) ? rest : rule
}

export const WRITTEN: Readonly<Record<NftFamily, readonly WrittenRule[]>> = {
  ip: [...SHARED, ...V4_PREFIXES, ...V4_ADDRESSES, ...serviceRules('ip'), ...perFamily('ip')],
  ip6: [...SHARED, ...V6_ADDRESSES, ...serviceRules('ip6'), ...perFamily('ip6')],
}
