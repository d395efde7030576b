import { describe, expect, it, test } from 'vitest'
import { createUserspaceTracer } from '../../../src/modes/userspace/trace.ts'
import { isAbout } from '../../support/mode-differences.ts'
import { change, computeIn, refusalsOf } from '../../support/pipeline.ts'
import { LOCAL_IPS, loadScenarios, type PacketRow, type Scenario } from '../../support/scenario.ts'
import { expectedLine, type Tracing, tracedLine } from '../../support/scenario-outcome.ts'
import { inUserspace, isOfThisMode, USERSPACE, userspaceDifferences } from '../../support/userspace-mode.ts'

const scenarios = loadScenarios()
const differences = userspaceDifferences()

interface Played {
  readonly title: string
  readonly outcomes: readonly { readonly row: PacketRow; readonly line: string }[]
  readonly refusals: readonly string[]
}

/** Rolls that repeat: a failure here is a failure every time. */
function rolling(): (modulus: number) => number {
  let state = 1
  return modulus => {
    state = (Math.imul(state, 1103515245) + 12345) >>> 0
    return (state >>> 8) % modulus
  }
}

function play(scenario: Scenario): readonly Played[] {
  let computed = computeIn(USERSPACE, scenario.config, LOCAL_IPS)
  const tracing: Omit<Tracing, 'tracer'> = { labels: new Map(), random: rolling(), dynamic: new Map() }
  return scenario.steps.map(step => {
    computed = change(computed, step)
    const withTracer = Object.assign(tracing, { tracer: createUserspaceTracer(computed.state) })
    const outcomes = step.rows.map(row => ({ row, line: tracedLine(row, withTracer) }))
    return { title: step.title, outcomes, refusals: refusalsOf(computed) }
  })
}

describe.each(scenarios.map(scenario => [`${scenario.file}: ${scenario.name}`, scenario] as const))(
  '%s',
  (_, scenario) => {
    test('every way through rules and relays is the expected one', () => {
      for (const [index, { title, outcomes, refusals }] of play(
        inUserspace(scenario, differences),
      ).entries()) {
        expect(
          outcomes.map(({ line }) => line),
          title,
        ).toEqual(outcomes.map(({ row }) => expectedLine(row)))
        const common = refusals.filter(refusal => !isOfThisMode(refusal))
        expect(common, `${title}: refusals`).toEqual(scenario.steps[index]?.refusals)
      }
    })
  },
)

test.each(differences.map(its => [`${its.file}: ${its.row}`, its] as const))('differs: %s', (_, its) => {
  const scenario = scenarios.find(({ file }) => file === its.file)
  expect(scenario, `there is no scenario ${its.file}`).toBeDefined()
  if (scenario === undefined) return
  const others = differences.filter(other => other !== its)
  const seen = play(inUserspace(scenario, others)).flatMap(step =>
    step.outcomes.filter(({ row }) => isAbout(its, { ...row, text: row.text }, step)),
  )
  expect(seen.length, 'rows of the scenario that are this one').toBeGreaterThan(0)
  expect(seen.filter(({ row, line }) => line !== expectedLine(row)).length).toBe(seen.length)
})

it('refuses each SCTP port by name', () => {
  const scenario = scenarios.find(({ file }) => file === 'cluster-ip-sctp.yaml')
  const [first] = scenario === undefined ? [] : play(inUserspace(scenario, differences))
  expect(first?.refusals.filter(isOfThisMode).length).toBeGreaterThan(0)
})
