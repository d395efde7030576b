import { describe, expect, it } from 'vitest'
import { formatCidr } from '../../../src/base/ip.ts'
import { configChanges } from '../../../src/config/config-changes.ts'
import { publishedConfig } from '../../../src/config/written-config.ts'
import { answersAtLoopback } from '../../../src/modes/iptables/settings.ts'
import { configFrom, errorsFrom, requestFrom } from '../../support/parse-flags.ts'

const IPVS = '--proxy-mode=ipvs'
const IPTABLES = '--proxy-mode=iptables'
const USERSPACE = '--proxy-mode=userspace'

const IPVS_DEFAULTS = {
  scheduler: 'rr',
  excludeCidrs: [],
  strictArp: false,
  tcpTimeoutS: 0,
  tcpFinTimeoutS: 0,
  udpTimeoutS: 0,
  rules: 'nftables',
  drainTimeoutMs: 900_000,
  digestPeriodMs: 1_000,
}

it.each<[string, object]>([
  ['ipvs', { syncPeriodMs: 30_000, nodePortAddresses: { primary: true, cidrs: [] }, ipvs: IPVS_DEFAULTS }],
  ['iptables', { iptables: { localhostNodePorts: true, optimize: false } }],
  ['userspace', {}],
])('%s mode has defaults of its own, by a flag and by a file', (mode, own) => {
  const config = configFrom([`--proxy-mode=${mode}`])
  expect(config).toMatchObject({
    proxyMode: mode,
    syncPeriodMs: 600_000,
    minSyncPeriodMs: 20,
    masqueradeBit: 14,
    masqueradeAll: false,
    nodePortAddresses: { primary: false, cidrs: [] },
    ...own,
  })
  expect(configFrom([], `mode: ${mode}\n`)).toEqual(config)
})

const IPVS_FLAGS = [
  '--ipvs-sync-period=40s',
  '--ipvs-min-sync-period=2s',
  '--ipvs-scheduler=mh',
  '--ipvs-strict-arp',
  '--ipvs-tcp-timeout=15m',
  '--ipvs-tcpfin-timeout=1500ms',
  '--ipvs-udp-timeout=10ms',
  '--ipvs-drain-timeout=1m',
  '--ipvs-digest-period=250ms',
  '--ipvs-rules=iptables',
]
const IPVS_FILE = `mode: ipvs
iptables: { masqueradeAll: true, masqueradeBit: 3 }
nftables: { masqueradeBit: 5, syncPeriod: 7m }
ipvs:
  { scheduler: lc, syncPeriod: 45s, minSyncPeriod: 1s, strictARP: true,
    tcpTimeout: 2h, tcpFinTimeout: 30s, udpTimeout: 20s }
`
const IPTABLES_FLAGS = [
  '--iptables-masquerade-bit=9',
  '--iptables-localhost-nodeports=false',
  '--iptables-min-sync-period=2s',
  '--iptables-sync-period=40s',
  '--iptables-optimize',
  '--masquerade-all',
]
const IPTABLES_SECTION = `
iptables: { masqueradeAll: true, masqueradeBit: 3, localhostNodePorts: false, syncPeriod: 45s, minSyncPeriod: 1s }
nftables: { masqueradeBit: 5, syncPeriod: 7m }
`
const OF_IPTABLES_SECTION = {
  masqueradeAll: true,
  masqueradeBit: 3,
  syncPeriodMs: 45_000,
  minSyncPeriodMs: 1_000,
}
const SHARED_FLAGS = ['--masquerade-bit=9', '--min-sync-period=2s', '--sync-period=40s']
const OF_SHARED_FLAGS = { masqueradeBit: 9, minSyncPeriodMs: 2_000, syncPeriodMs: 40_000 }
const PACE_OF_IPTABLES = ['--iptables-sync-period=9m', '--iptables-min-sync-period=9s']

it.each<[string, readonly string[], string | undefined, object]>([
  [
    'every flag of IPVS mode',
    [IPVS, ...IPVS_FLAGS],
    undefined,
    {
      syncPeriodMs: 40_000,
      minSyncPeriodMs: 2_000,
      ipvs: {
        scheduler: 'mh',
        strictArp: true,
        tcpTimeoutS: 900,
        tcpFinTimeoutS: 1,
        udpTimeoutS: 1,
        rules: 'iptables',
        drainTimeoutMs: 60_000,
        digestPeriodMs: 250,
      },
    },
  ],
  [
    'every field of a file for IPVS mode, and our own flags beside it',
    ['--ipvs-drain-timeout=0s'],
    IPVS_FILE,
    {
      ...OF_IPTABLES_SECTION,
      ipvs: {
        scheduler: 'lc',
        strictArp: true,
        tcpTimeoutS: 7_200,
        tcpFinTimeoutS: 30,
        udpTimeoutS: 20,
        drainTimeoutMs: 0,
      },
    },
  ],
  [
    "kube-proxy's flags of masquerading in IPVS mode",
    [IPVS, '--masquerade-all', '--iptables-masquerade-bit=9'],
    undefined,
    { masqueradeAll: true, masqueradeBit: 9 },
  ],
  ['flags that modes share, in IPVS mode', [IPVS, ...SHARED_FLAGS], undefined, OF_SHARED_FLAGS],
  [
    'the periods of another mode, which do not count',
    [IPVS, ...PACE_OF_IPTABLES],
    undefined,
    { syncPeriodMs: 30_000, minSyncPeriodMs: 20 },
  ],
  [
    'every flag of iptables mode',
    [IPTABLES, ...IPTABLES_FLAGS],
    undefined,
    { ...OF_SHARED_FLAGS, masqueradeAll: true, iptables: { localhostNodePorts: false, optimize: true } },
  ],
  ['flags that modes share, in iptables mode', [IPTABLES, ...SHARED_FLAGS], undefined, OF_SHARED_FLAGS],
  [
    'every field of a file for iptables mode, and our own flag beside it',
    ['--iptables-optimize'],
    `mode: iptables${IPTABLES_SECTION}`,
    { ...OF_IPTABLES_SECTION, iptables: { localhostNodePorts: false, optimize: true } },
  ],
  [
    'the section of iptables in userspace mode',
    [],
    `mode: userspace${IPTABLES_SECTION}`,
    OF_IPTABLES_SECTION,
  ],
  [
    'the periods of iptables mode in userspace mode',
    [USERSPACE, ...PACE_OF_IPTABLES],
    undefined,
    { syncPeriodMs: 540_000, minSyncPeriodMs: 9_000 },
  ],
])('reads %s', (_, flags, file, wanted) => {
  expect(configFrom(flags, file)).toMatchObject(wanted)
})

it('knows what IPVS mode excludes, in other modes for what it has left', () => {
  for (const [flags, file] of [
    [[IPVS, '--ipvs-exclude-cidrs=10.1.0.0/16,fd00:1::/64'], undefined],
    [[], 'ipvs: { excludeCIDRs: [10.1.0.0/16, "fd00:1::/64"] }\n'],
  ] as const)
    expect(configFrom(flags, file).ipvs.excludeCidrs.map(formatCidr)).toEqual(['10.1.0.0/16', 'fd00:1::/64'])
})

it('publishes the section of iptables mode, and an empty choice of node port addresses, as kube-proxy does', () => {
  const { settings } = requestFrom([IPTABLES, ...PACE_OF_IPTABLES])
  expect(publishedConfig(settings)).toMatchObject({
    mode: 'iptables',
    nodePortAddresses: null,
    iptables: { localhostNodePorts: true, masqueradeBit: 14, minSyncPeriod: '9s', syncPeriod: '9m0s' },
    nftables: { minSyncPeriod: '0s', syncPeriod: '0s' },
  })
})

it('applies changes of what IPVS mode has while the daemon runs', () => {
  const before = configFrom([], 'mode: ipvs\n')
  const after = configFrom([], 'mode: ipvs\nipvs: { scheduler: lc, strictARP: true }\n')
  expect(configChanges(before, after)).toEqual({ live: ['ipvs'], restart: [], process: [] })
})

it.each([
  [IPVS, '--ipvs-scheduler=Round Robin', '"Round Robin" cannot be the name of a scheduler'],
  [IPVS, '--ipvs-scheduler=abcdefghijklmnop', '"abcdefghijklmnop" cannot be the name'],
  [IPVS, '--ipvs-tcp-timeout=-1s', 'cannot be negative'],
  [IPVS, '--ipvs-tcpfin-timeout=-1s', 'cannot be negative'],
  [IPVS, '--ipvs-udp-timeout=-1s', 'cannot be negative'],
  [IPVS, '--ipvs-exclude-cidrs=10.0.0.0/8,nonsense', '"nonsense" is not a CIDR'],
  [IPVS, '--ipvs-min-sync-period=31s', 'cannot be longer than --sync-period'],
  [IPVS, '--ipvs-min-sync-period=-1s', 'cannot be negative'],
  [IPVS, '--ipvs-sync-period=0', 'must be longer than 0'],
  [IPVS, '--ipvs-drain-timeout=-1s', '"-1s" is not a duration'],
  [IPVS, '--ipvs-drain-timeout=long', '"long" is not a duration'],
  [IPVS, '--ipvs-digest-period=0', '"0" is not a duration'],
  [IPVS, '--ipvs-rules=none', '"none" is not one of nftables, iptables'],
  [IPVS, '--iptables-sync-period=soon', '"soon" is not a duration'],
  ['--proxy-mode=nftables', '--ipvs-sync-period=soon', '"soon" is not a duration'],
  [IPTABLES, '--iptables-masquerade-bit=32', '32 is not from 0 to 31'],
  [IPTABLES, '--iptables-sync-period=0', 'must be longer than 0'],
  [IPTABLES, '--iptables-min-sync-period=-1s', 'cannot be negative'],
  [IPTABLES, '--iptables-min-sync-period=11m', 'cannot be longer than --sync-period'],
  [IPTABLES, '--iptables-optimize=perhaps', '"perhaps" is not true or false'],
  [USERSPACE, '--once', 'cannot be combined with userspace mode, which relays only while kprobe runs'],
])('with %s, %s is refused: %s', (mode, flag, error) => {
  const [name = ''] = flag.split('=')
  const errors = errorsFrom([mode, flag])
  expect(errors).toHaveLength(1)
  expect(errors[0]).toMatch(new RegExp(`^${name}(\\[1\\])?: ${error}`))
})

it('allows --once=false in userspace mode', () => {
  expect(errorsFrom([USERSPACE, '--once=false'])).toEqual([])
})

it.each([
  ['--masquerade-bit', '--iptables-masquerade-bit', '9', '8', [IPVS, IPTABLES]],
  ['--sync-period', '--ipvs-sync-period', '5m', '6m', [IPVS]],
])('refuses %s and %s that differ', (name, other, value, another, modes) => {
  for (const mode of modes) {
    expect(errorsFrom([mode, `${name}=${value}`, `${other}=${value}`])).toEqual([])
    expect(errorsFrom([mode, `${name}=${value}`, `${other}=${another}`])).toEqual([
      `${name}: means the same as ${other} and differs from it`,
    ])
  }
})

describe('NodePorts at 127.0.0.1', () => {
  it.each<[string, readonly string[], boolean]>([
    ['by default', [], true],
    ['not when they are switched off', ['--iptables-localhost-nodeports=false'], false],
    ['not at the primary address alone', ['--nodeport-addresses=primary'], false],
    ['not in ranges without them', ['--nodeport-addresses=10.0.0.0/8'], false],
    ['in a range of them', ['--nodeport-addresses=10.0.0.0/8,127.0.0.0/8'], true],
    ['in a part of that', ['--nodeport-addresses=127.0.0.1/32'], true],
    ['in every address', ['--nodeport-addresses=0.0.0.0/0'], true],
    ['at localhost by name, beside the primary address', ['--nodeport-addresses=primary,localhost'], true],
    ['in all addresses by name', ['--nodeport-addresses=all'], true],
    ['not at the primary address beside ranges of IPv6', ['--nodeport-addresses=primary,fd00::/8'], false],
    [
      'not at localhost by name when they are switched off',
      ['--nodeport-addresses=localhost', '--iptables-localhost-nodeports=false'],
      false,
    ],
    ['when ranges are of IPv6 alone', ['--nodeport-addresses=fd00::/8'], true],
  ])('answer %s', (_, argv, answers) => {
    expect(answersAtLoopback(configFrom([IPTABLES, ...argv]))).toBe(answers)
  })
})

it.each([
  [
    ['--iptables-optimize', '--ipvs-digest-period=2s'],
    'nftables mode: --ipvs-digest-period, --iptables-optimize',
  ],
  [[IPTABLES, '--iptables-optimize', '--connection-metrics-max=0'], undefined],
  [
    [IPTABLES, '--connection-metrics-max=1000', '--balance=maglev'],
    'iptables mode: --connection-metrics-max, --balance',
  ],
  [['--connection-metrics-max=1000', '--balance=maglev'], undefined],
])('names our own flags that have no effect in the mode: %j', (flags, named) => {
  expect(requestFrom(flags).warnings).toEqual(named === undefined ? [] : [`no effect in ${named}`])
})
