import { describe, expect, it, test } from 'vitest'
import { isAbout, loadDifferences } from '../../support/mode-differences.ts'
import { expectTraced, playTraced } from '../../support/play-traced.ts'
import { IS_QUICK } from '../../support/runs.ts'
import { loadScenarios } from '../../support/scenario.ts'
import { expectedLine } from '../../support/scenario-outcome.ts'
import { BY_RELAY, inUserspace } from '../../support/userspace-mode.ts'

const scenarios = loadScenarios()
const differences = loadDifferences('userspace')

/** `npm run ok` follows packets through this mode in each fourth scenario, as through each of the others. */
const traced = IS_QUICK ? scenarios.filter((_, number) => number % 4 === 0) : scenarios

describe.each(traced.map(scenario => [`${scenario.file}: ${scenario.name}`, scenario] as const))(
  '%s',
  (_, scenario) => {
    test('every way through rules and relays is the expected one', () => {
      expectTraced(BY_RELAY, inUserspace(scenario, differences))
    })
  },
)

test.each(differences.map(its => [`${its.file}: ${its.row}`, its] as const))('differs: %s', (_, its) => {
  const scenario = scenarios.find(({ file }) => file === its.file)
  expect(scenario, `there is no scenario ${its.file}`).toBeDefined()
  if (scenario === undefined) return
  const others = differences.filter(other => other !== its)
  const seen = playTraced(BY_RELAY, inUserspace(scenario, others)).flatMap(step =>
    step.outcomes.filter(({ row }) => isAbout(its, row, step)),
  )
  expect(seen.length, 'rows of the scenario that are this one').toBeGreaterThan(0)
  expect(seen.filter(({ row, line }) => line !== expectedLine(row)).length).toBe(seen.length)
})

it('refuses each SCTP port by name', () => {
  const scenario = scenarios.find(({ file }) => file === 'cluster-ip-sctp.yaml')
  const [first] = scenario === undefined ? [] : playTraced(BY_RELAY, inUserspace(scenario, differences))
  const refused = first?.refusals.filter(refusal => BY_RELAY.refusesToo?.test(refusal))
  expect(refused?.length).toBeGreaterThan(0)
})
