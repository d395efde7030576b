import { afterAll, beforeAll, describe, test } from 'vitest'
import { Lab } from '../support/lab/lab.ts'
import { NFTABLES, openPlane } from '../support/pipeline.ts'
import { playSteps } from '../support/play-scenario.ts'
import { loadScenarios, type Scenario } from '../support/scenario.ts'

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
    await playSteps(scenario, { mode: NFTABLES, plane, lab })
  } finally {
    await client.close()
  }
}

describe.each(loadScenarios().map(scenario => [`${scenario.file}: ${scenario.name}`, scenario] as const))(
  '%s',
  (_, scenario) => {
    test('real packets end where they should', () => play(scenario))
  },
)
