import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { Lab } from '../support/lab/lab.ts'
import { change, commitAll, compute, type NftablesPlane, openPlane } from '../support/pipeline.ts'
import { LOCAL_IPS, loadScenarios, type Scenario } from '../support/scenario.ts'
import { expectedLine, flowOf, type Labels, seenLine } from '../support/scenario-outcome.ts'

let lab: Lab

beforeAll(async () => {
  lab = await Lab.start({ alsoLocal: ['192.168.99.22'] })
})

afterAll(async () => {
  await lab.close()
})

async function play(scenario: Scenario): Promise<void> {
  const { client, plane } = openPlane(scenario.config)
  try {
    await plane.cleanup()
    await playSteps(scenario, plane)
  } finally {
    await client.close()
  }
}

async function playSteps({ config, steps }: Scenario, plane: NftablesPlane): Promise<void> {
  let held = plane.empty
  let computed = compute(config, LOCAL_IPS)
  const labels: Labels = new Map()
  for (const step of steps) {
    computed = change(computed, step)
    held = await commitAll(plane, held, computed.state)
    const outcomes = await lab.trace(step.rows.map(flowOf))
    const seen = step.rows.flatMap((row, index) => {
      const outcome = outcomes[index]
      return outcome === undefined ? [] : [seenLine(row, outcome, labels)]
    })
    expect(seen, step.title).toEqual(step.rows.map(expectedLine))
  }
}

describe.each(loadScenarios().map(scenario => [`${scenario.file}: ${scenario.name}`, scenario] as const))(
  '%s',
  (_, scenario) => {
    test('real packets end where they should', () => play(scenario))
  },
)
