import { describe, expect, it } from 'vitest'
import { formatCidr } from '../../../src/base/ip.ts'
import { configChanges } from '../../../src/config/config-changes.ts'
import { configFrom, errorsFrom } from '../../support/parse-flags.ts'

const DEFAULTS = {
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

const FLAGS = [
  '--ipvs-sync-period=40s',
  '--ipvs-min-sync-period=2s',
  '--ipvs-scheduler=mh',
  '--ipvs-exclude-cidrs=10.1.0.0/16,fd00:1::/64',
  '--ipvs-strict-arp',
  '--ipvs-tcp-timeout=15m',
  '--ipvs-tcpfin-timeout=1500ms',
  '--ipvs-udp-timeout=10ms',
  '--ipvs-drain-timeout=1m',
  '--ipvs-digest-period=250ms',
  '--ipvs-rules=iptables',
]

describe('IPVS mode', () => {
  it('has defaults of its own', () => {
    const config = configFrom(['--proxy-mode=ipvs'])
    expect(config).toMatchObject({
      proxyMode: 'ipvs',
      syncPeriodMs: 30_000,
      minSyncPeriodMs: 20,
      masqueradeBit: 14,
      masqueradeAll: false,
      nodePortAddresses: { primary: true, cidrs: [] },
    })
    expect(config.ipvs).toEqual(DEFAULTS)
    expect(configFrom([], 'mode: ipvs\n')).toEqual({ ...config })
  })

  it('takes every flag', () => {
    const config = configFrom(['--proxy-mode=ipvs', ...FLAGS])
    const { excludeCidrs, ...rest } = config.ipvs
    expect(config).toMatchObject({ syncPeriodMs: 40_000, minSyncPeriodMs: 2_000 })
    expect(excludeCidrs.map(formatCidr)).toEqual(['10.1.0.0/16', 'fd00:1::/64'])
    expect(rest).toEqual({
      scheduler: 'mh',
      strictArp: true,
      tcpTimeoutS: 900,
      tcpFinTimeoutS: 1,
      udpTimeoutS: 1,
      rules: 'iptables',
      drainTimeoutMs: 60_000,
      digestPeriodMs: 250,
    })
  })

  it('takes every field of a file, and our own flags beside it', () => {
    const body =
      'mode: ipvs\niptables: { masqueradeAll: true, masqueradeBit: 3 }\n' +
      'nftables: { masqueradeBit: 5, syncPeriod: 7m }\n' +
      'ipvs:\n  scheduler: lc\n  syncPeriod: 45s\n  minSyncPeriod: 1s\n  strictARP: true\n' +
      '  excludeCIDRs: [10.1.0.0/16]\n  tcpTimeout: 2h\n  tcpFinTimeout: 30s\n  udpTimeout: 20s\n'
    const config = configFrom(['--ipvs-drain-timeout=0s'], body)
    expect(config).toMatchObject({
      masqueradeAll: true,
      masqueradeBit: 3,
      syncPeriodMs: 45_000,
      minSyncPeriodMs: 1_000,
      ipvs: {
        scheduler: 'lc',
        strictArp: true,
        tcpTimeoutS: 7_200,
        tcpFinTimeoutS: 30,
        udpTimeoutS: 20,
        drainTimeoutMs: 0,
      },
    })
  })

  it('reads what iptables says of masquerading, by either name of the bit', () => {
    const ipvs = '--proxy-mode=ipvs'
    expect(configFrom([ipvs, '--masquerade-all', '--iptables-masquerade-bit=9'])).toMatchObject({
      masqueradeAll: true,
      masqueradeBit: 9,
    })
    expect(configFrom([ipvs, '--masquerade-bit=9'])).toMatchObject({ masqueradeBit: 9 })
    expect(errorsFrom([ipvs, '--masquerade-bit=9', '--iptables-masquerade-bit=8'])).toEqual([
      '--masquerade-bit: means the same as --iptables-masquerade-bit and differs from it',
    ])
    expect(configFrom([ipvs, '--sync-period=5m'])).toMatchObject({ syncPeriodMs: 300_000 })
    expect(errorsFrom([ipvs, '--sync-period=5m', '--ipvs-sync-period=6m'])).toEqual([
      '--sync-period: means the same as --ipvs-sync-period and differs from it',
    ])
  })

  it('leaves the periods of another mode alone, and reads their texts', () => {
    const ipvs = '--proxy-mode=ipvs'
    expect(configFrom([ipvs, '--iptables-sync-period=9m', '--iptables-min-sync-period=9s'])).toMatchObject({
      syncPeriodMs: 30_000,
      minSyncPeriodMs: 20,
    })
    expect(errorsFrom([ipvs, '--iptables-sync-period=soon'])[0]).toMatch(/^--iptables-sync-period: "soon"/)
    expect(errorsFrom(['--ipvs-sync-period=soon'])[0]).toMatch(/^--ipvs-sync-period: "soon"/)
  })

  it.each([
    ['--ipvs-scheduler=Round Robin', /^--ipvs-scheduler: "Round Robin" cannot be the name of a scheduler/],
    ['--ipvs-scheduler=abcdefghijklmnop', /^--ipvs-scheduler: .* cannot be the name/],
    ['--ipvs-tcp-timeout=-1s', /^--ipvs-tcp-timeout: cannot be negative$/],
    ['--ipvs-tcpfin-timeout=-1s', /^--ipvs-tcpfin-timeout: cannot be negative$/],
    ['--ipvs-udp-timeout=-1s', /^--ipvs-udp-timeout: cannot be negative$/],
    ['--ipvs-exclude-cidrs=10.0.0.0/8,nonsense', /^--ipvs-exclude-cidrs\[1\]: "nonsense" is not a CIDR/],
    ['--ipvs-min-sync-period=31s', /^--ipvs-min-sync-period: cannot be longer than --sync-period$/],
    ['--ipvs-min-sync-period=-1s', /^--ipvs-min-sync-period: cannot be negative$/],
    ['--ipvs-sync-period=0', /^--ipvs-sync-period: must be longer than 0$/],
    ['--ipvs-drain-timeout=-1s', /^--ipvs-drain-timeout: "-1s" is not a duration/],
    ['--ipvs-drain-timeout=long', /^--ipvs-drain-timeout: "long" is not a duration/],
    ['--ipvs-digest-period=0', /^--ipvs-digest-period: "0" is not a duration/],
    ['--ipvs-rules=none', /^--ipvs-rules: "none" is not one of nftables, iptables$/],
  ])('refuses %s', (flag, error) => {
    expect(errorsFrom(['--proxy-mode=ipvs', flag])).toEqual([expect.stringMatching(error)])
  })
})

describe('another mode', () => {
  it('knows what was excluded, for what IPVS has left', () => {
    const { excludeCidrs } = configFrom([], 'ipvs: { excludeCIDRs: [10.1.0.0/16] }\n').ipvs
    expect(excludeCidrs.map(formatCidr)).toEqual(['10.1.0.0/16'])
  })
})

describe('changes', () => {
  it('of what ipvs has are applied to a daemon that runs', () => {
    const before = configFrom([], 'mode: ipvs\n')
    const after = configFrom([], 'mode: ipvs\nipvs: { scheduler: lc, strictARP: true }\n')
    expect(configChanges(before, after)).toEqual({ live: ['ipvs'], restart: [], process: [] })
  })
})
