import { afterAll, beforeAll, describe, test } from 'vitest'
import { openIpvsPlane } from '../support/ipvs-plane.ts'
import { Lab } from '../support/lab/lab.ts'
import { loadDifferences, withDifferences } from '../support/mode-differences.ts'
import { IPVS, IPVS_CHAINS } from '../support/pipeline.ts'
import { playSteps } from '../support/play-scenario.ts'
import { loadScenarios, type PacketRow, type Scenario } from '../support/scenario.ts'
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

async function play(scenario: Scenario, rules: 'nftables' | 'iptables'): Promise<void> {
  const { plane, close } = openIpvsPlane(scenario.config, { rules })
  try {
    await plane.cleanup()
    const mode = rules === 'nftables' ? IPVS : IPVS_CHAINS
    await playSteps(scenario, { mode, plane, lab, flowOf: flowInTurns })
  } finally {
    await close()
  }
}

const part = process.env.KPROBE_VM_PART ?? 'all'
const ofPart = loadScenarios().filter((_, index) => part === 'all' || (index % 6 === 0) === (part === 'core'))
const named = (scenarios: readonly Scenario[]) =>
  scenarios.map(scenario => [`${scenario.file}: ${scenario.name}`, scenario] as const)
const differences = loadDifferences('ipvs')

test.each(named(ofPart))('%s: real packets end where they should', (_, scenario) =>
  play(withDifferences(scenario, differences), 'nftables'),
)

/** Masquerading, policy Local, source ranges, node ports and affinity; test/scenarios/trace.test.ts follows all scenarios. */
const BY_CHAINS: ReadonlySet<string> = new Set([
  'affinity-external-local.yaml',
  'detector-none.yaml',
  'external-local-source-ranges.yaml',
  'hairpin-external.yaml',
  'no-endpoints.yaml',
  'node-port-like-a-port.yaml',
  'source-ranges.yaml',
])
const byChains = loadScenarios().filter(({ file }) => BY_CHAINS.has(file))
const differencesOfRules = [...differences, ...loadDifferences('ipvs-rules')]

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

describe.skipIf(part === 'core')("with kube-proxy's chains before IPVS", () => {
  // Rules of the other form are not theirs to remove.
  beforeAll(async () => {
    const { plane, close } = openIpvsPlane({})
    await plane.cleanup()
    await close()
  })

  test('each file of the list is there', () => {
    if (byChains.length !== BY_CHAINS.size) throw new Error(`${byChains.length} of ${BY_CHAINS.size} files`)
  })

  test.each(named(byChains))('%s: real packets end where they should', (_, scenario) =>
    play(visible(withDifferences(scenario, differencesOfRules)), 'iptables'),
  )
})
