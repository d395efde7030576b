import { afterAll, beforeAll, describe, test } from 'vitest'
import { openIpvsPlane } from '../support/ipvs-plane.ts'
import { Lab } from '../support/lab/lab.ts'
import { loadDifferences, withDifferences } from '../support/mode-differences.ts'
import { IPVS_CHAINS } from '../support/pipeline.ts'
import { playSteps } from '../support/play-scenario.ts'
import { loadScenarios, type PacketRow, type Scenario } from '../support/scenario.ts'
import { flowInTurns } from '../support/scenario-outcome.ts'
import { setIpvsSysctls } from './ipvs-sysctls.ts'

/*
 * Real packets through IPVS with kube-proxy's chains before it: scenarios of masquerading, policy Local, source ranges, NodePorts
 * and affinity. All scenarios go through the same rules as values in test/scenarios/trace.test.ts.
 */

const FILES: ReadonlySet<string> = new Set([
  'affinity-external-local.yaml',
  'detector-none.yaml',
  'external-local-source-ranges.yaml',
  'hairpin-external.yaml',
  'no-endpoints.yaml',
  'node-port-like-a-port.yaml',
  'source-ranges.yaml',
])

let lab: Lab

beforeAll(async () => {
  lab = await Lab.start({ alsoLocal: ['192.168.99.22'] })
  setIpvsSysctls()
})

afterAll(async () => {
  await lab.close()
})

async function play(scenario: Scenario): Promise<void> {
  const { plane, close } = openIpvsPlane(scenario.config, { rules: 'iptables' })
  try {
    await plane.cleanup()
    await playSteps(scenario, { mode: IPVS_CHAINS, plane, lab, flowOf: flowInTurns })
  } finally {
    await close()
  }
}

const differences = [...loadDifferences('ipvs'), ...loadDifferences('ipvs-rules')]
const scenarios = loadScenarios().filter(({ file }) => FILES.has(file))

test('each file of the list is there', () => {
  if (scenarios.length !== FILES.size) throw new Error(`${scenarios.length} of ${FILES.size} files`)
})

/**
 * Of what the node sends over UDP, and what is rejected at INPUT, the laboratory sees the same as of a port that is closed. All
 * others show that it is rejected.
 */
function isUnseen({ from, protocol, expected }: PacketRow): boolean {
  return from === 'node' && protocol === 'UDP' && expected.verdict === 'REJECT'
}

function visible(scenario: Scenario): Scenario {
  const steps = scenario.steps.map(step => ({ ...step, rows: step.rows.filter(row => !isUnseen(row)) }))
  return { ...scenario, steps }
}

describe.each(scenarios.map(scenario => [`${scenario.file}: ${scenario.name}`, scenario] as const))(
  '%s',
  (_, scenario) => {
    test('real packets end where they should', () => play(visible(withDifferences(scenario, differences))))
  },
)
