import { describe, expect, it } from 'vitest'
import { publishedConfig } from '../../../src/config/written-config.ts'
import { answersAtLoopback } from '../../../src/modes/iptables/settings.ts'
import { configFrom, errorsFrom, requestFrom } from '../../support/parse-flags.ts'

const MODE = '--proxy-mode=iptables'

describe('iptables mode', () => {
  it('has the defaults of kube-proxy, but for the periods, which are ours', () => {
    const config = configFrom([MODE])
    expect(config).toMatchObject({
      proxyMode: 'iptables',
      syncPeriodMs: 600_000,
      minSyncPeriodMs: 20,
      masqueradeBit: 14,
      masqueradeAll: false,
      nodePortAddresses: { primary: false, cidrs: [] },
      iptables: { localhostNodePorts: true, optimize: false },
    })
    expect(configFrom([], 'mode: iptables\n')).toEqual({ ...config })
  })

  it('takes every flag, by either name', () => {
    const flags = [
      '--iptables-masquerade-bit=9',
      '--iptables-localhost-nodeports=false',
      '--iptables-min-sync-period=2s',
      '--iptables-sync-period=40s',
      '--iptables-optimize',
      '--masquerade-all',
    ]
    const wanted = {
      masqueradeAll: true,
      masqueradeBit: 9,
      minSyncPeriodMs: 2_000,
      syncPeriodMs: 40_000,
      iptables: { localhostNodePorts: false, optimize: true },
    }
    expect(configFrom([MODE, ...flags])).toMatchObject(wanted)
    const own = ['--masquerade-bit=9', '--min-sync-period=2s', '--sync-period=40s', '--iptables-optimize']
    expect(configFrom([MODE, ...own])).toMatchObject({
      ...wanted,
      masqueradeAll: false,
      iptables: { optimize: true },
    })
    expect(errorsFrom([MODE, '--masquerade-bit=9', '--iptables-masquerade-bit=8'])).toEqual([
      '--masquerade-bit: means the same as --iptables-masquerade-bit and differs from it',
    ])
  })

  it('takes every field of a file, and our own flag beside it', () => {
    const body =
      'mode: iptables\niptables:\n  masqueradeAll: true\n  masqueradeBit: 3\n  localhostNodePorts: false\n' +
      '  syncPeriod: 45s\n  minSyncPeriod: 1s\nnftables: { masqueradeBit: 5, syncPeriod: 7m }\n'
    expect(configFrom(['--iptables-optimize'], body)).toMatchObject({
      masqueradeAll: true,
      masqueradeBit: 3,
      syncPeriodMs: 45_000,
      minSyncPeriodMs: 1_000,
      iptables: { localhostNodePorts: false, optimize: true },
    })
  })

  it('publishes its section with the periods, and an empty choice of NodePort addresses, as kube-proxy does', () => {
    const { settings } = requestFrom([MODE, '--iptables-sync-period=40s', '--iptables-min-sync-period=2s'])
    expect(publishedConfig(settings)).toMatchObject({
      mode: 'iptables',
      nodePortAddresses: null,
      iptables: { localhostNodePorts: true, masqueradeBit: 14, minSyncPeriod: '2s', syncPeriod: '40s' },
      nftables: { minSyncPeriod: '0s', syncPeriod: '0s' },
    })
  })

  it.each([
    ['--iptables-masquerade-bit=32', '--iptables-masquerade-bit: 32 is not from 0 to 31'],
    ['--iptables-sync-period=0', '--iptables-sync-period: must be longer than 0'],
    ['--iptables-min-sync-period=-1s', '--iptables-min-sync-period: cannot be negative'],
    ['--iptables-min-sync-period=11m', '--iptables-min-sync-period: cannot be longer than --sync-period'],
    ['--iptables-optimize=perhaps', '--iptables-optimize: "perhaps" is not true or false'],
  ])('refuses %s', (flag, error) => {
    expect(errorsFrom([MODE, flag])).toEqual([error])
  })
})

describe('userspace mode', () => {
  it('reads the section of iptables, and takes every address for NodePorts', () => {
    const body =
      'mode: userspace\niptables: { masqueradeBit: 3, masqueradeAll: true, syncPeriod: 45s, minSyncPeriod: 1s }\n'
    expect(configFrom([], body)).toMatchObject({
      proxyMode: 'userspace',
      masqueradeAll: true,
      masqueradeBit: 3,
      syncPeriodMs: 45_000,
      minSyncPeriodMs: 1_000,
      nodePortAddresses: { primary: false, cidrs: [] },
    })
    expect(configFrom(['--proxy-mode=userspace', '--iptables-sync-period=40s']).syncPeriodMs).toBe(40_000)
  })

  it('cannot be used with --once, as what it relays ends with the process', () => {
    expect(errorsFrom(['--proxy-mode=userspace', '--once'])).toEqual([
      '--once: cannot be combined with userspace mode, which relays only while kprobe runs',
    ])
    expect(errorsFrom(['--proxy-mode=userspace', '--once=false'])).toEqual([])
  })
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
    expect(answersAtLoopback(configFrom([MODE, ...argv]))).toBe(answers)
  })
})

describe('our own flag in another mode', () => {
  it('is without effect, which is said', () => {
    expect(requestFrom(['--iptables-optimize', '--ipvs-digest-period=2s']).warnings).toEqual([
      'no effect in nftables mode: --ipvs-digest-period, --iptables-optimize',
    ])
    expect(requestFrom([MODE, '--iptables-optimize', '--connection-metrics-max=0']).warnings).toEqual([])
    expect(requestFrom([MODE, '--connection-metrics-max=1000', '--balance=maglev']).warnings).toEqual([
      'no effect in iptables mode: --connection-metrics-max, --balance',
    ])
    expect(requestFrom(['--connection-metrics-max=1000', '--balance=maglev']).warnings).toEqual([])
  })
})
