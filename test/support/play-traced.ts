import { expect } from 'vitest'
import { change, computeIn, refusalsOf, type Stateful } from './pipeline.ts'
import type { Player } from './players.ts'
import { LOCAL_IPS, type PacketRow, type Scenario } from './scenario.ts'
import { expectedLine, type Tracing, tracedLine } from './scenario-outcome.ts'

interface PlayedStep {
  readonly title: string
  readonly outcomes: readonly { readonly row: PacketRow; readonly line: string }[]
  readonly refusals: readonly string[]
}

/** Rolls that repeat: a failure here is a failure every time. */
export function rolling(seed: number): (modulus: number) => number {
  let state = seed
  return modulus => {
    state = (Math.imul(state, 1103515245) + 12345) >>> 0
    return (state >>> 8) % modulus
  }
}

/** Follows every packet of a scenario through what a mode computes, step by step. No kernel. */
export function playTraced<State extends Stateful>(
  { mode, tracerOf }: Player<State>,
  scenario: Scenario,
  seed = 1,
): readonly PlayedStep[] {
  let computed = computeIn(mode, scenario.config, LOCAL_IPS)
  const tracing: Omit<Tracing, 'tracer'> = { labels: new Map(), random: rolling(seed), dynamic: new Map() }
  return scenario.steps.map(step => {
    computed = change(computed, step)
    const withTracer = Object.assign(tracing, { tracer: tracerOf(computed.state) })
    return {
      title: step.title,
      outcomes: step.rows.map(row => ({ row, line: tracedLine(row, withTracer) })),
      refusals: refusalsOf(computed),
    }
  })
}

/** Fails where a packet or a refusal is not what the scenario says. */
export function expectTraced<State extends Stateful>(
  player: Player<State>,
  scenario: Scenario,
  seed = 1,
): void {
  for (const [index, { title, outcomes, refusals }] of playTraced(player, scenario, seed).entries()) {
    expect(
      outcomes.map(({ line }) => line),
      title,
    ).toEqual(outcomes.map(({ row }) => expectedLine(row)))
    const own = refusals.filter(refusal => player.refusesToo?.test(refusal) !== true)
    expect(own, `${title}: refusals`).toEqual(scenario.steps[index]?.refusals)
  }
}
