import { type Computed, change, computeIn, type Mode, type Stateful } from './pipeline.ts'
import { LOCAL_IPS, loadScenarios } from './scenario.ts'

/** The same walk in each run; `WALK_SEED=N` takes another one, `WALK_STEPS=N` makes it longer. */
export function walkSettings(
  env: NodeJS.ProcessEnv,
  usually: number,
): { readonly seed: number; readonly steps: number } {
  return {
    seed: Number(env.WALK_SEED ?? 1),
    steps: Number(env.WALK_STEPS ?? usually),
  }
}

/** A place to be. */
export interface Stop<State extends Stateful> {
  readonly name: string
  readonly computed: Computed<State>
}

/** Every step of every scenario. */
export function allStops<State extends Stateful>(mode: Mode<State>): readonly Stop<State>[] {
  return loadScenarios().flatMap(({ file, config, steps }) => {
    let computed = computeIn(mode, config, LOCAL_IPS)
    return steps.map((step, index): Stop<State> => {
      computed = change(computed, step)
      return { name: `${file}[${index}]`, computed }
    })
  })
}

/** Mulberry32: the same numbers from the same seed, below `bound`. */
export function generator(seed: number): (bound: number) => number {
  let state = seed >>> 0
  return bound => {
    state = (state + 0x6d2b79f5) >>> 0
    let t = Math.imul(state ^ (state >>> 15), state | 1)
    t ^= t + Math.imul(t ^ (t >>> 7), t | 61)
    return ((t ^ (t >>> 14)) >>> 0) % bound
  }
}
