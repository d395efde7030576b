import { afterEach, expect, it } from 'vitest'
import { type BesideReading, KubeProxyWatch } from '../../../src/daemon/beside.ts'
import type { EventFact } from '../../../src/telemetry/event.ts'
import { FakeClock } from '../../support/fake-clock.ts'
import { createMetrics } from '../../support/metrics.ts'
import { recordedLog } from '../../support/recorded-log.ts'

const opened: KubeProxyWatch[] = []

afterEach(async () => {
  for (const watch of opened.splice(0)) await watch.stop()
})

type Newest = readonly (readonly [string, bigint])[]
type Ports = readonly (readonly [string, string | undefined])[]

const SERVICES = 'KUBE-SERVICES in ip nat'
const CHECK = 'cluster-ips-check in ip kube-proxy'

const lookAt = ({
  pids = [] as number[],
  ports = [] as Ports,
  rules = [] as Newest,
} = {}): BesideReading => ({
  processes: pids,
  ports: new Map(ports),
  newest: new Map(rules),
})

function rig({ writesChains = false } = {}) {
  const clock = new FakeClock()
  const { log, said } = recordedLog(2)
  const metrics = createMetrics()
  const events: EventFact[] = []
  let found: BesideReading | undefined = lookAt()
  let meanwhile: (() => void) | undefined
  const watch = new KubeProxyWatch({
    clock,
    log,
    nodeName: 'node-1',
    read: () => {
      meanwhile?.()
      meanwhile = undefined
      return found === undefined ? Promise.reject(new Error('EPERM')) : Promise.resolve(found)
    },
    writesChains: () => writesChains,
    metrics,
    tell: fact => events.push(fact),
  })
  opened.push(watch)
  const beside = async () => /^kprobe_kube_proxy_beside (\d)$/m.exec(await metrics.text())?.[1]
  const see = async (now: BesideReading | undefined, minutes = 1) => {
    found = now
    await clock.advance(minutes * 60_000)
  }
  const during = (event: () => void) => {
    meanwhile = event
  }
  return { clock, watch, said, events, beside, see, during }
}

const BESIDE = 'kube-proxy runs on this node beside kprobe'

it('says once that kube-proxy rewrites its chains, and an hour later that it no longer does', async () => {
  const { watch, said, events, beside, see } = rig()
  await see(lookAt())
  await see(lookAt({ rules: [[SERVICES, 40n]] }), 2)
  expect([await beside(), watch.check, said(BESIDE).length]).toEqual(['1', expect.anything(), 1])
  await see(lookAt({ rules: [[SERVICES, 60n]] }), 2)
  expect(said(BESIDE)).toEqual([
    expect.objectContaining({
      level: 'error',
      signs: ['the chain KUBE-SERVICES in ip nat was written'],
      msg: expect.stringContaining('does not touch it'),
    }),
  ])
  expect(events).toEqual([expect.objectContaining({ type: 'Warning', reason: 'KubeProxyBeside' })])
  await see(lookAt({ rules: [[SERVICES, 60n]] }), 70)
  expect(await beside()).toBe('1')
  await see(lookAt({ rules: [[SERVICES, 60n]] }), 2)
  expect([await beside(), watch.check]).toEqual(['0', undefined])
  expect(said('no longer runs beside kprobe')).toHaveLength(1)
})

it('takes what an earlier kube-proxy left, its removal, and a failed reading for no sign', async () => {
  const { watch, see } = rig()
  const clock = new FakeClock()
  const left = lookAt({ rules: [[SERVICES, 90n]] })
  const own = new KubeProxyWatch({
    clock,
    log: recordedLog().log,
    nodeName: 'node-1',
    read: () => Promise.resolve(left),
    writesChains: () => false,
    metrics: createMetrics(),
    tell: () => undefined,
  })
  opened.push(own)
  await clock.advance(180_000)
  expect(own.check).toBeUndefined()
  await see(lookAt())
  await see(undefined, 3)
  await see(lookAt())
  expect(watch.check).toBeUndefined()
})

it('does not count the seconds of a hand-over, in which both processes run and kube-proxy still writes', async () => {
  const { watch, see, said } = rig()
  await see(lookAt({ rules: [[SERVICES, 50n]] }))
  await see(lookAt({ rules: [[SERVICES, 50n]] }), 3)
  expect(watch.check).toBeUndefined()
  await see(lookAt({ pids: [7], ports: [['0.0.0.0:10256', 'kube-proxy']] }))
  await see(lookAt())
  expect(watch.check).toBeUndefined()
  await see(lookAt({ pids: [8], ports: [['0.0.0.0:10256', 'kube-proxy']] }), 2)
  expect(watch.check).toEqual({
    name: 'kube-proxy',
    failure: 'runs beside kprobe: process kube-proxy (pid 8)',
    isAdvice: true,
  })
  expect(said(BESIDE)).toHaveLength(1)
})

it('knows the chains that kprobe writes itself in a mode with chains', async () => {
  const { watch, see } = rig({ writesChains: true })
  const commit = { kind: 'committed' } as Parameters<typeof watch.report>[0]
  await see(lookAt())
  for (const handle of [10n, 20n]) {
    watch.report(commit)
    await see(lookAt({ rules: [[SERVICES, handle]] }))
  }
  expect(watch.check).toBeUndefined()
  await see(lookAt({ rules: [[SERVICES, 30n]] }), 2)
  expect(watch.check).toBeDefined()
})

it('takes the holder of a port for kube-proxy by its name, and says when it has none', async () => {
  const { watch, see, said } = rig()
  await see(lookAt({ ports: [['0.0.0.0:10249', 'node_exporter']] }), 3)
  expect(watch.check).toBeUndefined()
  await see(lookAt({ ports: [['0.0.0.0:10256', undefined]] }), 2)
  expect(watch.check?.failure).toBe(
    'may run beside kprobe: a process without a visible name listens at 0.0.0.0:10256',
  )
  expect([said(BESIDE).length, said('and may be kube-proxy').length]).toEqual([0, 1])
})

it('is certain from the first certain sign on, as long as the port is held, and says so once', async () => {
  const { watch, see, said, events, beside } = rig()
  const ports: Ports = [['0.0.0.0:10256', undefined]]
  await see(lookAt({ ports }), 2)
  await see(lookAt({ ports, rules: [[SERVICES, 10n]] }), 2)
  expect([said(BESIDE).length, said('and may be kube-proxy').length]).toEqual([1, 1])
  const { note } = events.at(-1) ?? {}
  expect([events.length, note]).toEqual([2, expect.stringContaining(`the chain ${SERVICES} was written`)])
  await see(lookAt({ ports, rules: [[SERVICES, 10n]] }), 80)
  expect(watch.check?.failure).toMatch(/^runs beside kprobe: .*the chain KUBE-SERVICES in ip nat was written/)
  await see(lookAt({ ports, rules: [[SERVICES, 20n]] }), 2)
  expect([said(BESIDE).length, events.length, await beside()]).toEqual([1, 2, '1'])
  await see(lookAt({ rules: [[SERVICES, 20n]] }), 75)
  expect([watch.check, await beside()]).toEqual([undefined, '0'])
})

it("sees kube-proxy's own table also while kprobe writes chains of iptables", async () => {
  const { watch, see } = rig({ writesChains: true })
  const commit = () => watch.report({ kind: 'committed' } as Parameters<typeof watch.report>[0])
  await see(lookAt())
  for (const handle of [10n, 20n]) {
    commit()
    await see(
      lookAt({
        rules: [
          [SERVICES, handle],
          [CHECK, handle],
        ],
      }),
    )
  }
  commit()
  await see(
    lookAt({
      rules: [
        [SERVICES, 30n],
        [CHECK, 20n],
      ],
    }),
  )
  expect(watch.check?.failure).toBe(`runs beside kprobe: the chain ${CHECK} was written`)
})

it('says once that an add-on manager starts a kube-proxy each minute, however often it is stopped', async () => {
  const { watch, said, events, beside, see } = rig()
  await see(lookAt())
  for (let minute = 1; minute <= 60; minute++) {
    // Each one syncs before it is stopped.
    await see(lookAt({ pids: [100 + minute], rules: [[SERVICES, BigInt(minute)]] }))
  }
  expect([said(BESIDE).length, events.length, await beside()]).toEqual([1, 1, '1'])
  expect(watch.check?.failure).toBe('runs beside kprobe: the chain KUBE-SERVICES in ip nat was written')
})

it('does not take a commit that is reported during a reading, or after it, for one of kube-proxy', async () => {
  const { watch, see, during } = rig({ writesChains: true })
  const commit = () => watch.report({ kind: 'committed' } as Parameters<typeof watch.report>[0])
  await see(lookAt())
  during(commit)
  await see(lookAt())
  await see(lookAt({ rules: [[SERVICES, 10n]] }))
  await see(lookAt({ rules: [[SERVICES, 20n]] }))
  commit()
  await see(lookAt({ rules: [[SERVICES, 20n]] }), 2)
  expect(watch.check).toBeUndefined()
})

it("sees kube-proxy's nftables mode by the chains that a repair removes, at once", () => {
  const { watch, said } = rig()
  const healed = (...objects: readonly string[]) => watch.report({ kind: 'healed', changes: 1, objects })
  healed('add element ip kube-proxy frontends', 'remove chain ip kube-proxy foreign-chain')
  expect(watch.check).toBeUndefined()
  healed('remove chain ip kube-proxy service-ULMVA6XW-ns1/svc1/tcp/p80')
  expect(said(BESIDE)).toHaveLength(1)
  healed('remove chain ip kube-proxy cluster-ips-check')
  expect(said(BESIDE)).toHaveLength(1)
})
