import { afterEach, expect, test, vi } from 'vitest'
import type { Config, ProxyMode } from '../../../src/config/config.ts'
import { MODE_NAMES } from '../../../src/config/modes.ts'
import type { ActiveMode, ActiveModeOptions } from '../../../src/daemon/active-mode.ts'
import { ModeSwitcher, type ModeSwitcherOptions } from '../../../src/daemon/mode-switcher.ts'
import { leftoversCheck, leftoversMetric } from '../../../src/daemon/retirement.ts'
import type { Mode } from '../../../src/modes/mode.ts'
import type * as Registry from '../../../src/modes/registry.ts'
import { MODES } from '../../../src/modes/registry.ts'
import type { ReconcilerEvent } from '../../../src/reconcile/pass.ts'
import { FakeClock, settle } from '../../support/fake-clock.ts'

/* docs/decisions/0015: who programs the kernel, and when the mode from before goes. The planes are not ours here. */

interface Begun {
  readonly mode: ProxyMode
  readonly report: (event: ReconcilerEvent) => void
  readonly resolved: (snapshot: object) => void
  readonly stopped: () => void
}

const begun: Begun[] = []
const warned: string[] = []
/** Snapshots whose meaning was told to others. */
const told: object[] = []
const retired: ProxyMode[] = []
/** Modes that the process has programmed the kernel in. */
const known: ProxyMode[] = []
/** Modes whose next retirement fails. */
const failures = new Set<ProxyMode>()
/** The chains of iptables mode may be another program's. */
let hasForeign = true
/** Modes in which the kernel rejects the rules of IPv6. */
const lacking = new Set<ProxyMode>()
let servicesOf: 'IPv4' | 'IPv6' = 'IPv6'

function fakeMode(config: Config, options: ActiveModeOptions): ActiveMode {
  let stopped = (): void => undefined
  const end = new Promise<void>(resolve => {
    stopped = resolve
  })
  const resolved = (snapshot: object) => options.resolved?.({ snapshot } as never)
  begun.push({ mode: config.proxyMode, report: options.report, resolved, stopped })
  const mode: Pick<ActiveMode, 'mode' | 'offer' | 'stop'> & { readonly status: object } = {
    mode: config.proxyMode,
    get status() {
      const failedFamily = lacking.has(config.proxyMode) ? { family: 'IPv6' } : undefined
      const table = { services: new Map([['a/b', { ports: [{ family: servicesOf }] }]]) }
      return { failedFamily, table }
    },
    offer: () => undefined,
    stop: () => end,
  }
  return mode as ActiveMode
}

vi.mock('../../../src/modes/registry.ts', async original => {
  const { MODES, ...real } = await original<typeof Registry>()
  const modes = MODES.map(
    (mode): Mode => ({
      ...mode,
      retire({ config: { serviceProxyName } }, _signal, isKnown) {
        retired.push(mode.name)
        if (isKnown) known.push(mode.name)
        if (failures.delete(mode.name)) return Promise.reject(new Error('EPERM'))
        const isKept =
          hasForeign && mode.cleanupOnRequest === true && !isKnown && serviceProxyName === undefined
        return Promise.resolve(isKept ? { kept: 'chains of iptables mode are kept' } : 'removed')
      },
    }),
  )
  return { ...real, MODES: modes, findMode: (name: string) => modes.find(mode => mode.name === name) }
})

afterEach(() => {
  for (const list of [begun, warned, told, retired, known]) list.length = 0
  for (const modes of [failures, lacking]) modes.clear()
  hasForeign = true
  servicesOf = 'IPv6'
})

const SYNCED: ReconcilerEvent = { kind: 'synced', number: 1, reason: 'start', durationMs: 1, readWhole: true }

interface Asked {
  readonly rules?: Config['ipvs']['rules']
  readonly serviceProxyName?: string
}

function configOf(proxyMode: ProxyMode, { rules = 'nftables', serviceProxyName }: Asked = {}): Config {
  return { proxyMode, backend: 'netlink', ipvs: { rules }, serviceProxyName } as Config
}

function switcher(start = configOf('nftables'), clock = new FakeClock()): ModeSwitcher {
  const log = {
    info: () => undefined,
    warn: (_: unknown, text: string) => warned.push(text),
    error: (_: unknown, text: string) => warned.push(text),
  }
  const resolved = ({ snapshot }: { readonly snapshot: object }) => told.push(snapshot)
  return new ModeSwitcher(start, {
    clock,
    log,
    report: () => undefined,
    resolved,
    start: fakeMode,
  } as never as ModeSwitcherOptions)
}

/** A switcher whose first mode has synced, and retired the others. */
async function started(...[start, clock]: Parameters<typeof switcher>): Promise<ModeSwitcher> {
  const mine = switcher(start, clock)
  begun[0]?.report(SYNCED)
  await mine.retired()
  return mine
}

test('the mode from before retires once its last pass has ended, which would repair what goes', async () => {
  const mine = await started()
  retired.length = 0
  await mine.change(configOf('ipvs'))
  expect(mine.current.mode).toBe('nftables')
  begun[1]?.report(SYNCED)
  await settle()
  expect(mine.current.mode).toBe('ipvs')
  expect(retired).toEqual([])
  begun[0]?.stopped()
  await mine.retired()
  expect(retired).toEqual(MODE_NAMES.filter(name => name !== 'ipvs'))
  expect(known).toEqual(['nftables'])
})

test("a named proxy removes nothing of modes that have no place for names: it is another one's", async () => {
  await started(configOf('nftables', { serviceProxyName: 'mesh' }))
  const others = MODES.filter(({ name, notNamed }) => name !== 'nftables' && notNamed === undefined)
  expect(retired).toEqual(others.map(({ name }) => name))
  expect(warned).toEqual([])
})

test('chains that anybody may have written stay, and are warned of', async () => {
  await started()
  expect(retired).toEqual(MODE_NAMES.filter(name => name !== 'nftables'))
  expect(warned).toEqual(['chains of iptables mode are kept'])
})

test('the old mode serves until the next one can program each family that has Services', async () => {
  const mine = switcher()
  begun[0]?.report(SYNCED)
  lacking.add('userspace')
  await mine.change(configOf('userspace'))
  const failure = { family: 'IPv6', error: new Error('no'), retryMs: 1, failures: 1 } as const
  warned.length = 0
  begun[1]?.report({ kind: 'family-failed', ...failure })
  begun[1]?.report(SYNCED)
  expect(mine.current.mode).toBe('nftables')
  expect(warned).toEqual([expect.stringMatching(/^cannot switch to the new proxy mode yet/)])
  servicesOf = 'IPv4'
  begun[1]?.report(SYNCED)
  expect(mine.current.mode).toBe('userspace')
})

test('what stays of other modes is tried every minute, said once, and reported until it is gone', async () => {
  const clock = new FakeClock()
  failures.add('userspace')
  const mine = await started(configOf('nftables'), clock)
  const kept = 'chains of iptables mode are kept'
  expect([...(mine.leftovers ?? [])]).toEqual([
    ['iptables', kept],
    ['userspace', 'cannot remove them: EPERM'],
  ])
  expect(leftoversCheck(mine.leftovers)).toMatchObject({
    failure: `iptables mode: ${kept}; userspace mode: cannot remove them: EPERM`,
    isAdvice: true,
  })
  expect(leftoversMetric(mine.leftovers).kprobe_leftover_modes?.read()).toEqual([
    [{ mode: 'iptables' }, 1],
    [{ mode: 'userspace' }, 1],
  ])
  retired.length = 0
  await clock.advance(120_000)
  expect(retired).toEqual(['iptables', 'userspace', 'iptables'])
  expect(warned).toEqual([kept, expect.stringContaining('cannot remove leftovers')])
  hasForeign = false
  await clock.advance(600_000)
  expect(retired.slice(3)).toEqual(['iptables'])
  expect(leftoversCheck(mine.leftovers)).toBeUndefined()
})

test('a process that stops no longer tries to remove what stays of other modes', async () => {
  const clock = new FakeClock()
  failures.add('userspace')
  const mine = await started(configOf('nftables'), clock)
  retired.length = 0
  void mine.stop()
  await clock.advance(120_000)
  expect(retired).toEqual([])
})

test.each([
  ['iptables', 'ipvs'],
  ['ipvs', 'iptables'],
] as const)(
  'two modes with chains of the same names never work side by side: %s, %s',
  async (before, after) => {
    const mine = switcher(configOf(before, { rules: 'iptables' }))
    begun[0]?.report(SYNCED)
    await settle()
    await expect(mine.change(configOf(after, { rules: 'iptables' }))).rejects.toThrow(
      /chains of the same names/,
    )
    expect(begun).toHaveLength(1)
    await mine.change(configOf('nftables', { rules: 'iptables' }))
    expect(begun).toHaveLength(2)
  },
)

test('what only the mode that takes over has resolved is told when it does', async () => {
  const mine = switcher()
  const [older, newer] = [{}, {}]
  mine.offer(older as never)
  begun[0]?.resolved(older)
  await mine.change(configOf('userspace'))
  mine.offer(newer as never)
  // The one that serves is stuck with what it was told before.
  begun[1]?.resolved(newer)
  expect(told).toEqual([older])
  begun[1]?.report(SYNCED)
  expect(told).toHaveLength(2)
  expect(told[1]).toBe(newer)
})
