import { describe, expect, test } from 'vitest'
import { createTracer } from '../../src/kernel/nft/trace.ts'
import { type Computed, change, compute, refusalsOf } from '../support/pipeline.ts'
import { LOCAL_IPS, loadScenarios } from '../support/scenario.ts'
import { expectedLine, type Tracing, tracedLine } from '../support/scenario-outcome.ts'

const scenarios = loadScenarios()

test('there are at least 45 scenarios', () => {
  expect(scenarios.length).toBeGreaterThanOrEqual(45)
  expect(new Set(scenarios.map(({ name }) => name)).size).toBe(scenarios.length)
})

/** Rolls that repeat: a failure here is a failure every time. */
function rolling(): (modulus: number) => number {
  let state = 1
  return modulus => {
    state = (Math.imul(state, 1103515245) + 12345) >>> 0
    return (state >>> 8) % modulus
  }
}

describe.each(scenarios.map(scenario => [`${scenario.file}: ${scenario.name}`, scenario] as const))(
  '%s',
  (_, scenario) => {
    test('every way through the computed rules is the expected one', () => {
      let computed: Computed = compute(scenario.config, LOCAL_IPS)
      const tracing: Omit<Tracing, 'tracer'> = { labels: new Map(), random: rolling(), dynamic: new Map() }
      for (const step of scenario.steps) {
        computed = change(computed, step)
        const tracer = createTracer(computed.state.ruleset)
        const withTracer = Object.assign(tracing, { tracer })
        expect(
          step.rows.map(row => tracedLine(row, withTracer)),
          step.title,
        ).toEqual(step.rows.map(expectedLine))
        expect(refusalsOf(computed), `${step.title}: refusals`).toEqual(step.refusals)
      }
    })
  },
)
