import { expect, test } from 'vitest'
import { finish, type Steps, systemClock } from '../../../src/base/clock.ts'
import { formatIpPort } from '../../../src/base/ip.ts'
import { IPTABLES_SECTION } from '../../../src/config/modes/iptables-section.ts'
import type { FrontendTable } from '../../../src/model/frontend.ts'
import type { Mode, ModeContext } from '../../../src/modes/mode.ts'
import {
  type Dataplane,
  generationOf,
  type Plan,
  type PlanLine,
  type RenderOptions,
} from '../../../src/reconcile/dataplane.ts'
import { parseFlags } from '../../support/parse-flags.ts'
import { change, compute } from '../../support/pipeline.ts'
import { LOCAL_IPS, loadScenarios } from '../../support/scenario.ts'

/** Service port to its endpoints: what the toy mode keeps in its kernel, which is a variable. */
type ToyState = ReadonlyMap<string, string>

interface ToyKernel {
  state: ToyState
  commits: number
}

function toyPlane(kernel: ToyKernel): Dataplane<ToyState> {
  return {
    name: 'toy',
    empty: new Map(),
    *render({ services }: FrontendTable, { without }: RenderOptions<ToyState>): Steps<ToyState> {
      const state = new Map<string, string>()
      for (const [key, { ports }] of services.entries()) {
        yield
        if (without.has(key)) continue
        for (const { displayName, cluster } of ports)
          state.set(displayName, cluster.map(({ ip, port }) => formatIpPort(ip, port)).join(' '))
      }
      return state
    },
    *diff(from, to): Steps<Plan<ToyState>> {
      yield
      const keys = new Set([...from.keys(), ...to.keys()])
      const lines = [...keys]
        .filter(key => from.get(key) !== to.get(key))
        .map(
          (key): PlanLine => ({ verb: verbOf(from.get(key), to.get(key)), object: key, service: undefined }),
        )
      const changes = lines.length
      return {
        empty: changes === 0,
        changes,
        after: to,
        complete: true,
        rebuilds: false,
        describe: () => lines,
      }
    },
    observe: async () => ({ state: kernel.state, generation: generationOf(kernel.commits) }),
    async commit({ after }) {
      kernel.state = after
      const generation = generationOf(++kernel.commits)
      const numbers = { bytes: 0, messages: 1, durationMs: 0 }
      return { outcome: 'committed', generation, foreign: false, refusals: [], ...numbers }
    },
    generation: () => generationOf(kernel.commits),
    watchWriters: () => () => undefined,
    cleanup: async () => {
      kernel.state = new Map()
    },
  }
}

function verbOf(before: string | undefined, after: string | undefined): PlanLine['verb'] {
  if (before === undefined) return 'add'
  return after === undefined ? 'remove' : 'change'
}

/** The members that every mode has; the others of `Mode` are optional. */
function toyMode(kernel: ToyKernel): Mode {
  return {
    name: 'toy',
    title: 'toy',
    // Without a section of its own, a mode shares that of iptables mode.
    settings: { ...IPTABLES_SECTION, defaultSyncPeriod: 600_000_000_000n },
    kernelPart: 'a variable',
    open: (_, use) =>
      use({
        plane: toyPlane(kernel),
        start: () => undefined,
        unsupported: () => [],
        extent: ({ size }) => ({ frontends: size, endpoints: 0 }),
        close: async () => undefined,
      }),
    retire: async () => 'nothing',
    // A variable translates no packet.
    traced: () => ({ tables: [] }),
    held: async () => undefined,
    needsFeature: () => false,
    cleanup: async () => ({ removed: [], foreign: [] }),
    costs: { frontend: 256, sliceEndpoint: 32, endpoint: 32, perFrontend: false },
    tableName: () => undefined,
  }
}

test('the toy mode programs a scenario, and finds nothing to do afterwards', async () => {
  const [step] = loadScenarios().find(({ file }) => file === 'cluster-ip.yaml')?.steps ?? []
  if (step === undefined) throw new Error('no such scenario')
  const { resolved } = change(compute({}, LOCAL_IPS), step)
  const kernel = { state: new Map(), commits: 0 }
  await toyMode(kernel).open<Promise<void>>(context(), async ({ plane, extent, close }) => {
    const wanted = finish(plane.render(resolved.table, { base: plane.empty, without: new Set() }))
    const plan = finish(plane.diff(plane.empty, wanted))
    expect([...plan.describe()].map(({ verb, object }) => `${verb} ${object}`)).toEqual(['add ns1/svc1:p80'])
    expect(await plane.commit(plan, {})).toMatchObject({ outcome: 'committed' })
    expect(kernel.state.get('ns1/svc1:p80')).toBe('10.180.0.1:80 10.180.1.1:80')
    const observed = await plane.observe()
    expect(finish(plane.diff(observed.state, wanted)).empty).toBe(true)
    expect(extent(observed.state).frontends).toBe(1)
    await close()
  })
})

/** What a daemon opens a mode with. The toy mode has no use for sockets. */
function context(): ModeContext {
  const parsed = parseFlags([], { hostName: 'node' })
  if (parsed.kind !== 'ok') throw new Error('no configuration')
  const none = () => {
    throw new Error('the toy mode opens no socket')
  }
  const sockets = { netfilter: none, generic: none, route: none }
  return { config: parsed.value.config, clock: systemClock, sockets }
}
