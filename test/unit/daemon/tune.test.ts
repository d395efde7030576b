import { mkdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { dirname } from 'node:path'
import { beforeEach, describe, expect, it } from 'vitest'
import type { ConntrackConfig } from '../../../src/config/config.ts'
import { CONNTRACK_MAX, conntrackSysctls, tuneConntrack, tuneMode } from '../../../src/daemon/tune.ts'
import { planSysctls, SYSCTLS, type SysctlPlan } from '../../../src/kernel/sysctl/sysctls.ts'
import { iptablesOptions } from '../../../src/modes/iptables/settings.ts'
import { temporaryFolder } from '../../support/folder.ts'
import { configFrom } from '../../support/parse-flags.ts'

/** kube-proxy's defaults. */
const DEFAULTS = configFrom([]).conntrack

type Values = Readonly<Record<keyof typeof SYSCTLS, number | undefined>>

/** What a kernel starts with. */
const FRESH: Values = {
  max: 65_536,
  hashSize: 16_384,
  tcpEstablished: 432_000,
  tcpCloseWait: 60,
  tcpFinWait: 120,
  tcpTimeWait: 120,
  tcpBeLiberal: 0,
  udp: 30,
  udpStream: 120,
}

function planned(settings: Partial<ConntrackConfig> = {}, values: Partial<Values> = {}, processors = 2) {
  const present = new Map<string, number | undefined>(Object.entries({ ...FRESH, ...values }))
  const byName = new Map(Object.entries(SYSCTLS).map(([key, { name }]) => [name, present.get(key)]))
  return planSysctls(conntrackSysctls({ ...DEFAULTS, ...settings }, processors), byName)
}

const writes = (plan: SysctlPlan) => plan.writes.map(({ name, value }) => `${name}=${value}`)
const left = (plan: SysctlPlan) => plan.left.map(({ name, reason }) => `${name} ${reason}`)

const SIZES = ['nf_conntrack_max=131072', 'hashsize=32768']
const TIMEOUTS = ['nf_conntrack_tcp_timeout_established=86400', 'nf_conntrack_tcp_timeout_close_wait=3600']
const LARGE = { max: 4_000_000, tcpEstablished: 200_000, tcpCloseWait: 7_200, hashSize: 1_000_000 }

describe('the conntrack sysctls', () => {
  it.each<[string, Partial<ConntrackConfig>, Partial<Values>, readonly string[]]>([
    ["writes kube-proxy's defaults on a fresh kernel", {}, {}, [...SIZES, ...TIMEOUTS]],
    ['leaves the size alone when maxPerCore is 0', { maxPerCore: 0 }, {}, TIMEOUTS],
    [
      'lowers it when told to, but never the number of buckets',
      { lower: true },
      LARGE,
      ['nf_conntrack_max=131072', ...TIMEOUTS],
    ],
    [
      'lowers what is only what every kernel starts with',
      { udpTimeoutMs: 10_000, udpStreamTimeoutMs: 60_000 },
      {},
      [...SIZES, ...TIMEOUTS, 'nf_conntrack_udp_timeout=10', 'nf_conntrack_udp_timeout_stream=60'],
    ],
    [
      'sets the timeouts of FIN_WAIT and TIME_WAIT',
      { tcpFinWaitTimeoutMs: 30_000, tcpTimeWaitTimeoutMs: 60_000 },
      {},
      [
        ...SIZES,
        ...TIMEOUTS,
        'nf_conntrack_tcp_timeout_fin_wait=30',
        'nf_conntrack_tcp_timeout_time_wait=60',
      ],
    ],
    [
      'leaves timeouts that are not given, or 0',
      { tcpEstablishedTimeoutMs: 0, tcpCloseWaitTimeoutMs: undefined, udpTimeoutMs: 0 },
      {},
      SIZES,
    ],
    [
      'sets tcp_be_liberal when asked',
      { tcpBeLiberal: true },
      {},
      [...SIZES, ...TIMEOUTS, 'nf_conntrack_tcp_be_liberal=1'],
    ],
    ['never clears tcp_be_liberal', {}, { tcpBeLiberal: 1 }, [...SIZES, ...TIMEOUTS]],
  ])('%s', (_, settings, kernel, wanted) => {
    expect(writes(planned(settings, kernel))).toEqual(wanted)
  })

  it.each([
    [2, DEFAULTS.min, 131_072],
    [8, DEFAULTS.min, 262_144],
    [64, DEFAULTS.min, CONNTRACK_MAX],
    // The minimum is not capped, unless the processors alone exceed the cap, as in kube-proxy 1.36.
    [2, 2_000_000, 2_000_000],
    [64, 4_000_000, CONNTRACK_MAX],
  ])('sizes the table for %i processors and a minimum of %i at %i entries', (processors, min, max) => {
    expect(writes(planned({ min }, {}, processors)).slice(0, 2)).toEqual([
      `nf_conntrack_max=${max}`,
      `hashsize=${max / 4}`,
    ])
  })

  it.each([
    ['equal', { max: 131_072, hashSize: 32_768, tcpEstablished: 86_400, tcpCloseWait: 3_600 }],
    ['larger', LARGE],
  ])('I-22 writes nothing where what is there is %s', (reason, kernel) => {
    const plan = planned({}, kernel)
    expect(plan.writes).toEqual([])
    expect(left(plan)).toEqual([...SIZES, ...TIMEOUTS].map(setting => setting.replace(/=.*/, ` ${reason}`)))
  })

  it('I-23 names what the kernel does not have, and plans the rest', () => {
    const plan = planned({}, { max: undefined, tcpCloseWait: undefined })
    expect(left(plan)).toEqual(['nf_conntrack_max missing', 'nf_conntrack_tcp_timeout_close_wait missing'])
    expect(writes(plan)).toEqual(['hashsize=32768', 'nf_conntrack_tcp_timeout_established=86400'])
  })
})

/** One setting of each kind: a count for each processor, and a timeout. */
const SETTINGS: ConntrackConfig = {
  ...DEFAULTS,
  maxPerCore: 100_000,
  min: 1,
  tcpEstablishedTimeoutMs: 60_000,
  tcpCloseWaitTimeoutMs: undefined,
}

let root: string

beforeEach(() => {
  root = `${temporaryFolder()}/`
})

function put(path: string, text: string): void {
  mkdirSync(dirname(root + path), { recursive: true })
  writeFileSync(root + path, text)
}

const content = (path: string) => readFileSync(root + path, 'utf8')

describe('tuneConntrack', () => {
  beforeEach(() => {
    put('sys/devices/system/cpu/online', '0-1,4\n')
    for (const { path } of Object.values(SYSCTLS)) put(path, '1\n')
  })

  it('writes what differs, for the processors of the machine', async () => {
    const { written, failed } = await tuneConntrack(SETTINGS, { root })
    expect(written.map(({ name, value, before }) => [name, value, before])).toEqual([
      ['nf_conntrack_max', 300_000, 1],
      ['hashsize', 75_000, 1],
      ['nf_conntrack_tcp_timeout_established', 60, 1],
    ])
    expect(failed).toEqual([])
    expect(content(SYSCTLS.max.path)).toBe('300000')
    expect(content(SYSCTLS.udp.path)).toBe('1\n')
  })

  it('counts the processors itself where the kernel does not list them', async () => {
    rmSync(`${root}sys/devices`, { recursive: true })
    const { written } = await tuneConntrack(SETTINGS, { root })
    expect(written[0]?.value).toBeGreaterThanOrEqual(100_000)
  })

  it('tells what cannot be read or written, and goes on', async () => {
    rmSync(root + SYSCTLS.max.path)
    mkdirSync(root + SYSCTLS.max.path)
    put(SYSCTLS.hashSize.path, 'many\n')
    put(SYSCTLS.udp.path, 'unread, since nothing is wanted of it')
    const { written, left, failed } = await tuneConntrack(SETTINGS, { root })
    expect(failed.map(({ name, error }) => `${name} ${error.message}`)).toEqual([
      expect.stringContaining('nf_conntrack_max EISDIR'),
      expect.stringContaining('not a number: "many\\n"'),
    ])
    expect([written.length, left]).toEqual([1, []])
  })
})

const LOCALNET = 'proc/sys/net/ipv4/conf/all/route_localnet'

describe('route_localnet', () => {
  it('is set where NodePorts answer at 127.0.0.1', async () => {
    put(LOCALNET, '0\n')
    const { written, failed } = await tuneMode(configFrom(['--proxy-mode=iptables']), { root })
    expect(written.map(({ name, before, value }) => [name, before, value])).toEqual([
      ['net/ipv4/conf/all/route_localnet', 0, 1],
    ])
    expect(failed).toEqual([])
    expect(readFileSync(root + LOCALNET, 'utf8')).toBe('1')
  })

  it.each([
    [['--proxy-mode=iptables', '--iptables-localhost-nodeports=false']],
    [['--proxy-mode=iptables', '--nodeport-addresses=10.0.0.0/8']],
    [['--proxy-mode=nftables']],
    [['--proxy-mode=userspace']],
  ])('is left alone with %j', async argv => {
    put(LOCALNET, '0\n')
    expect(await tuneMode(configFrom(argv), { root })).toEqual({ written: [], left: [], failed: [] })
    expect(readFileSync(root + LOCALNET, 'utf8')).toBe('0\n')
  })

  it('that is not there is more than left as it is', async () => {
    const { failed, left } = await tuneMode(configFrom(['--proxy-mode=iptables']), { root })
    expect(left).toEqual([])
    expect(failed.map(({ name }) => name)).toEqual(['net/ipv4/conf/all/route_localnet'])
  })
})

describe('packets in state INVALID', () => {
  const liberal = (setting: number | undefined, ...argv: readonly string[]) =>
    iptablesOptions(configFrom(['--proxy-mode=iptables', ...argv]), { setting: () => setting }).tcpBeLiberal

  it('are dropped unless connection tracking is liberal, or will be', () => {
    expect(liberal(0)).toBe(false)
    expect(liberal(undefined)).toBe(false)
    expect(liberal(1)).toBe(true)
    expect(liberal(0, '--conntrack-tcp-be-liberal')).toBe(true)
  })
})
