import { expect, test } from 'vitest'
import { formatIpPort } from '../../../src/base/ip.ts'
import { finish, type Steps } from '../../../src/base/steps.ts'
import type { FrontendTable } from '../../../src/model/frontend.ts'
import type { Dataplane, Plan, PlanLine, RenderOptions } from '../../../src/reconcile/dataplane.ts'
import { change, compute } from '../../support/pipeline.ts'
import { LOCAL_IPS, loadScenarios } from '../../support/scenario.ts'

/** Service port to its endpoints: what the toy mode keeps in its kernel, which is a variable. */
type ToyState = ReadonlyMap<string, string>

function toyPlane(kernel: { state: ToyState; generation: number }): Dataplane<ToyState> {
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
    observe: async () => kernel,
    async commit({ after }) {
      kernel.state = after
      const generation = ++kernel.generation
      const numbers = { bytes: 0, messages: 1, durationMs: 0 }
      return { outcome: 'committed', generation, foreign: false, refusals: [], ...numbers }
    },
    generation: () => kernel.generation,
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

test('the toy mode programs a scenario, and finds nothing to do afterwards', async () => {
  const [step] = loadScenarios().find(({ file }) => file === 'cluster-ip.yaml')?.steps ?? []
  if (step === undefined) throw new Error('no such scenario')
  const { resolved } = change(compute({}, LOCAL_IPS), step)
  const kernel = { state: new Map(), generation: 1 }
  const plane = toyPlane(kernel)
  const wanted = finish(plane.render(resolved.table, { base: plane.empty, without: new Set() }))
  const plan = finish(plane.diff(plane.empty, wanted))
  expect([...plan.describe()].map(({ verb, object }) => `${verb} ${object}`)).toEqual(['add ns1/svc1:p80'])
  expect(await plane.commit(plan, {})).toMatchObject({ outcome: 'committed' })
  const observed = await plane.observe()
  expect(observed.state.get('ns1/svc1:p80')).toBe('10.180.0.1:80 10.180.1.1:80')
  expect(finish(plane.diff(observed.state, wanted)).empty).toBe(true)
})
