import { describe, expect, it } from 'vitest'
import type { ConntrackConfig } from '../../../src/config/config.ts'
import { CONNTRACK_MAX, conntrackSysctls } from '../../../src/daemon/tune.ts'
import { planSysctls, SYSCTLS, type SysctlPlan } from '../../../src/kernel/sysctl/sysctls.ts'

/** kube-proxy's defaults. */
const DEFAULTS: ConntrackConfig = {
  maxPerCore: 32_768,
  min: 131_072,
  tcpEstablishedTimeoutMs: 86_400_000,
  tcpCloseWaitTimeoutMs: 3_600_000,
  tcpFinWaitTimeoutMs: undefined,
  tcpTimeWaitTimeoutMs: undefined,
  tcpBeLiberal: false,
  udpTimeoutMs: undefined,
  udpStreamTimeoutMs: undefined,
  lower: false,
}

type Values = Readonly<Record<keyof typeof SYSCTLS, number | undefined>>

const KEYS = [
  'max',
  'hashSize',
  'tcpEstablished',
  'tcpCloseWait',
  'tcpFinWait',
  'tcpTimeWait',
  'tcpBeLiberal',
  'udp',
  'udpStream',
] as const

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

function planned(
  settings: Partial<ConntrackConfig> = {},
  values: Partial<Values> = {},
  processors = 2,
): SysctlPlan {
  const present: Values = { ...FRESH, ...values }
  const byName = new Map<string, number | undefined>()
  for (const key of KEYS) byName.set(SYSCTLS[key].name, present[key])
  return planSysctls(conntrackSysctls({ ...DEFAULTS, ...settings }, processors), byName)
}

const writes = (plan: SysctlPlan) => plan.writes.map(({ name, value }) => `${name}=${value}`)
const left = (plan: SysctlPlan) => plan.left.map(({ name, reason }) => `${name} ${reason}`)

describe('the conntrack sysctls', () => {
  it("writes kube-proxy's defaults on a fresh kernel", () => {
    expect(writes(planned())).toEqual([
      'nf_conntrack_max=131072',
      'hashsize=32768',
      'nf_conntrack_tcp_timeout_established=86400',
      'nf_conntrack_tcp_timeout_close_wait=3600',
    ])
  })

  it.each([
    [2, 131_072],
    [8, 262_144],
    [64, CONNTRACK_MAX],
  ])('sizes the table for %i processors at %i entries', (processors, max) => {
    expect(writes(planned({}, {}, processors)).slice(0, 2)).toEqual([
      `nf_conntrack_max=${max}`,
      `hashsize=${max / 4}`,
    ])
  })

  it('does not cap the minimum, unless the processors alone exceed the cap, as in kube-proxy 1.36', () => {
    expect(writes(planned({ min: 2_000_000 }))[0]).toBe('nf_conntrack_max=2000000')
    expect(writes(planned({ min: 4_000_000 }, {}, 64))[0]).toBe(`nf_conntrack_max=${CONNTRACK_MAX}`)
  })

  it('leaves the size alone when maxPerCore is 0', () => {
    expect(writes(planned({ maxPerCore: 0 })).join()).not.toMatch(/max=|hashsize/)
  })

  it('writes nothing that is there already', () => {
    const same = { max: 131_072, hashSize: 32_768, tcpEstablished: 86_400, tcpCloseWait: 3_600 }
    const plan = planned({}, same)
    expect(plan.writes).toEqual([])
    expect(plan.left.every(({ reason }) => reason === 'equal')).toBe(true)
  })

  it('I-22 never lowers what an operator made larger', () => {
    const plan = planned(
      {},
      { max: 4_000_000, tcpEstablished: 200_000, tcpCloseWait: 7_200, hashSize: 1_000_000 },
    )
    expect(plan.writes).toEqual([])
    expect(left(plan)).toEqual([
      'nf_conntrack_max larger',
      'hashsize larger',
      'nf_conntrack_tcp_timeout_established larger',
      'nf_conntrack_tcp_timeout_close_wait larger',
    ])
  })

  it('lowers it when told to, but never the number of buckets', () => {
    const large = { max: 4_000_000, tcpEstablished: 200_000, tcpCloseWait: 7_200, hashSize: 1_000_000 }
    expect(writes(planned({ lower: true }, large))).toEqual([
      'nf_conntrack_max=131072',
      'nf_conntrack_tcp_timeout_established=86400',
      'nf_conntrack_tcp_timeout_close_wait=3600',
    ])
  })

  it('lowers what is only what every kernel starts with', () => {
    const plan = planned({ udpTimeoutMs: 10_000, udpStreamTimeoutMs: 60_000 })
    expect(writes(plan).slice(-2)).toEqual([
      'nf_conntrack_udp_timeout=10',
      'nf_conntrack_udp_timeout_stream=60',
    ])
  })

  it('sets the timeouts of FIN_WAIT and TIME_WAIT', () => {
    const plan = planned({ tcpFinWaitTimeoutMs: 30_000, tcpTimeWaitTimeoutMs: 60_000 })
    expect(writes(plan).slice(-2)).toEqual([
      'nf_conntrack_tcp_timeout_fin_wait=30',
      'nf_conntrack_tcp_timeout_time_wait=60',
    ])
  })

  it('leaves timeouts that are not given, or 0', () => {
    const nothing = { tcpEstablishedTimeoutMs: 0, tcpCloseWaitTimeoutMs: undefined, udpTimeoutMs: 0 }
    expect(writes(planned(nothing))).toEqual(['nf_conntrack_max=131072', 'hashsize=32768'])
  })

  it('sets tcp_be_liberal when asked, and never clears it', () => {
    expect(writes(planned({ tcpBeLiberal: true })).at(-1)).toBe('nf_conntrack_tcp_be_liberal=1')
    expect(writes(planned({}, { tcpBeLiberal: 1 })).join()).not.toContain('be_liberal')
  })

  it('I-23 names what the kernel does not have, and plans the rest', () => {
    const plan = planned({}, { max: undefined, tcpCloseWait: undefined })
    expect(left(plan)).toEqual(['nf_conntrack_max missing', 'nf_conntrack_tcp_timeout_close_wait missing'])
    expect(writes(plan)).toEqual(['hashsize=32768', 'nf_conntrack_tcp_timeout_established=86400'])
  })
})
