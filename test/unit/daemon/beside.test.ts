import { expect, it, onTestFinished } from 'vitest'
import { type BesideReading, KubeProxyWatch } from '../../../src/daemon/beside.ts'
import type { EventFact } from '../../../src/telemetry/event.ts'
import { FakeClock } from '../../support/fake-clock.ts'
import { createMetrics } from '../../support/metrics.ts'
import { recordedLog } from '../../support/recorded-log.ts'

const SERVICES = 'KUBE-SERVICES in ip nat'
const CHECK = 'cluster-ips-check in ip kube-proxy'
const PORT = '0.0.0.0:10256'
const BESIDE = 'kube-proxy runs on this node beside kprobe'

interface Seen {
  readonly pids?: readonly number[]
  /** Who holds a port; undefined for a process without a visible name. */
  readonly ports?: Readonly<Record<string, string | undefined>>
  /** The newest handle of a chain. */
  readonly rules?: Readonly<Record<string, bigint>>
}

const readingOf = ({ pids = [], ports = {}, rules = {} }: Seen): BesideReading => ({
  processes: pids,
  ports: new Map(Object.entries(ports)),
  newest: new Map(Object.entries(rules)),
})

/** The watch of a daemon that starts where this is seen. */
function rig({ writesChains = false, start = {} }: { writesChains?: boolean; start?: Seen } = {}) {
  const clock = new FakeClock()
  const { log, said } = recordedLog(2)
  const metrics = createMetrics()
  const events: EventFact[] = []
  let found: Seen | 'unreadable' = start
  let meanwhile: (() => void) | undefined
  const watch = new KubeProxyWatch({
    clock,
    log,
    nodeName: 'node-1',
    read: () => {
      meanwhile?.()
      meanwhile = undefined
      return found === 'unreadable' ? Promise.reject(new Error('EPERM')) : Promise.resolve(readingOf(found))
    },
    writesChains: () => writesChains,
    metrics,
    tell: fact => events.push(fact),
  })
  onTestFinished(() => watch.stop())
  const beside = async () => /^kprobe_kube_proxy_beside (\d)$/m.exec(await metrics.text())?.[1]
  const see = async (now: Seen | 'unreadable', minutes = 1) => {
    found = now
    await clock.advance(minutes * 60_000)
  }
  const commit = () => watch.report({ kind: 'committed' } as Parameters<typeof watch.report>[0])
  const commitWhileReading = () => {
    meanwhile = commit
  }
  return { watch, said, events, beside, see, commit, commitWhileReading }
}

it('says once that kube-proxy rewrites its chains, and an hour later that it no longer does', async () => {
  const { watch, said, events, beside, see } = rig()
  await see({})
  await see({ rules: { [SERVICES]: 40n } }, 2)
  expect([await beside(), watch.check, said(BESIDE).length]).toEqual(['1', expect.anything(), 1])
  await see({ rules: { [SERVICES]: 60n } }, 2)
  expect(said(BESIDE)).toEqual([
    expect.objectContaining({
      level: 'error',
      signs: ['the chain KUBE-SERVICES in ip nat was written'],
      msg: expect.stringContaining('does not touch it'),
    }),
  ])
  expect(events).toEqual([expect.objectContaining({ type: 'Warning', reason: 'KubeProxyBeside' })])
  await see({ rules: { [SERVICES]: 60n } }, 70)
  expect(await beside()).toBe('1')
  await see({ rules: { [SERVICES]: 60n } }, 2)
  expect([await beside(), watch.check]).toEqual(['0', undefined])
  expect(said('no longer runs beside kprobe')).toHaveLength(1)
})

it('takes what an earlier kube-proxy left, its removal, and a failed reading for no sign', async () => {
  const { watch, see } = rig({ start: { rules: { [SERVICES]: 90n } } })
  await see({ rules: { [SERVICES]: 90n } }, 3)
  await see({})
  await see('unreadable', 3)
  await see({})
  expect(watch.check).toBeUndefined()
})

it('does not count the seconds of a hand-over, in which both processes run and kube-proxy still writes', async () => {
  const { watch, see, said } = rig()
  await see({ rules: { [SERVICES]: 50n } }, 4)
  expect(watch.check).toBeUndefined()
  await see({ pids: [7], ports: { [PORT]: 'kube-proxy' } })
  await see({})
  expect(watch.check).toBeUndefined()
  await see({ pids: [8], ports: { [PORT]: 'kube-proxy' } }, 2)
  expect(watch.check).toEqual({
    name: 'kube-proxy',
    failure: 'runs beside kprobe: process kube-proxy (pid 8)',
    isAdvice: true,
  })
  expect(said(BESIDE)).toHaveLength(1)
})

it('knows the chains that kprobe writes itself in a mode with chains', async () => {
  const { watch, see, commit } = rig({ writesChains: true })
  await see({})
  for (const handle of [10n, 20n]) {
    commit()
    await see({ rules: { [SERVICES]: handle } })
  }
  expect(watch.check).toBeUndefined()
  await see({ rules: { [SERVICES]: 30n } }, 2)
  expect(watch.check).toBeDefined()
})

it('takes the holder of a port for kube-proxy by its name, and says when it has none', async () => {
  const { watch, see, said } = rig()
  await see({ ports: { '0.0.0.0:10249': 'node_exporter' } }, 3)
  expect(watch.check).toBeUndefined()
  await see({ ports: { [PORT]: undefined } }, 2)
  expect(watch.check?.failure).toBe(
    'may run beside kprobe: a process without a visible name listens at 0.0.0.0:10256',
  )
  expect([said(BESIDE).length, said('and may be kube-proxy').length]).toEqual([0, 1])
})

it('is certain from the first certain sign on, as long as the port is held, and says so once', async () => {
  const { watch, see, said, events, beside } = rig()
  const ports = { [PORT]: undefined }
  await see({ ports }, 2)
  await see({ ports, rules: { [SERVICES]: 10n } }, 2)
  expect([said(BESIDE).length, said('and may be kube-proxy').length]).toEqual([1, 1])
  const { note } = events.at(-1) ?? {}
  expect([events.length, note]).toEqual([2, expect.stringContaining(`the chain ${SERVICES} was written`)])
  await see({ ports, rules: { [SERVICES]: 10n } }, 80)
  expect(watch.check?.failure).toMatch(/^runs beside kprobe: .*the chain KUBE-SERVICES in ip nat was written/)
  await see({ ports, rules: { [SERVICES]: 20n } }, 2)
  expect([said(BESIDE).length, events.length, await beside()]).toEqual([1, 2, '1'])
  await see({ rules: { [SERVICES]: 20n } }, 75)
  expect([watch.check, await beside()]).toEqual([undefined, '0'])
})

it("sees kube-proxy's own table also while kprobe writes chains of iptables", async () => {
  const { watch, see, commit } = rig({ writesChains: true })
  await see({})
  for (const rules of [
    { [SERVICES]: 10n, [CHECK]: 10n },
    { [SERVICES]: 20n, [CHECK]: 20n },
    { [SERVICES]: 30n, [CHECK]: 20n },
  ]) {
    commit()
    await see({ rules })
  }
  expect(watch.check?.failure).toBe(`runs beside kprobe: the chain ${CHECK} was written`)
})

it('says once that an add-on manager starts a kube-proxy each minute, however often it is stopped', async () => {
  const { watch, said, events, beside, see } = rig()
  await see({})
  for (let minute = 1; minute <= 60; minute++) {
    // Each one syncs before it is stopped.
    await see({ pids: [100 + minute], rules: { [SERVICES]: BigInt(minute) } })
  }
  expect([said(BESIDE).length, events.length, await beside()]).toEqual([1, 1, '1'])
  expect(watch.check?.failure).toBe('runs beside kprobe: the chain KUBE-SERVICES in ip nat was written')
})

it('does not take a commit that is reported during a reading, or after it, for one of kube-proxy', async () => {
  const { watch, see, commit, commitWhileReading } = rig({ writesChains: true })
  await see({})
  commitWhileReading()
  await see({})
  await see({ rules: { [SERVICES]: 10n } })
  await see({ rules: { [SERVICES]: 20n } })
  commit()
  await see({ rules: { [SERVICES]: 20n } }, 2)
  expect(watch.check).toBeUndefined()
})

it("sees kube-proxy's nftables mode by the chains that a repair removes, at once", () => {
  const { watch, said } = rig()
  const repaired = (...objects: readonly string[]) => watch.report({ kind: 'repaired', changes: 1, objects })
  repaired('add element ip kube-proxy frontends', 'remove chain ip kube-proxy foreign-chain')
  expect(watch.check).toBeUndefined()
  repaired('remove chain ip kube-proxy service-ULMVA6XW-ns1/svc1/tcp/p80')
  expect(said(BESIDE)).toHaveLength(1)
  repaired('remove chain ip kube-proxy cluster-ips-check')
  expect(said(BESIDE)).toHaveLength(1)
})
