import { afterAll, beforeAll, describe, test } from 'vitest'
import { openIpvsPlane } from '../support/ipvs-plane.ts'
import { Lab } from '../support/lab/lab.ts'
import { loadDifferences, withDifferences } from '../support/mode-differences.ts'
import { IPVS } from '../support/pipeline.ts'
import { playSteps } from '../support/play-scenario.ts'
import { loadScenarios, type Scenario } from '../support/scenario.ts'
import { flowInTurns } from '../support/scenario-outcome.ts'
import { setIpvsSysctls } from './ipvs-sysctls.ts'

/* Every scenario of test/scenarios with real packets through IPVS: each sixth in the core, the others in the rest. */

let lab: Lab

beforeAll(async () => {
  lab = await Lab.start({ alsoLocal: ['192.168.99.22'] })
  setIpvsSysctls()
})

afterAll(async () => {
  await lab.close()
})

async function play(scenario: Scenario): Promise<void> {
  const { plane, close } = openIpvsPlane(scenario.config)
  try {
    await plane.cleanup()
    await playSteps(scenario, { mode: IPVS, plane, lab, flowOf: flowInTurns })
  } finally {
    await close()
  }
}

const differences = loadDifferences('ipvs')
const part = process.env.KPROBE_VM_PART ?? 'all'
const ofPart = loadScenarios().filter((_, index) => part === 'all' || (index % 6 === 0) === (part === 'core'))

describe.each(ofPart.map(scenario => [`${scenario.file}: ${scenario.name}`, scenario] as const))(
  '%s',
  (_, scenario) => {
    test('real packets end where they should', () => play(withDifferences(scenario, differences)))
  },
)
