import { afterAll, beforeAll, describe, test } from 'vitest'
import { openIpvsPlane } from '../support/ipvs-plane.ts'
import { Lab } from '../support/lab/lab.ts'
import { loadDifferences, withDifferences } from '../support/mode-differences.ts'
import { IPVS_CHAINS } from '../support/pipeline.ts'
import { playSteps } from '../support/play-scenario.ts'
import { loadScenarios, type Scenario } from '../support/scenario.ts'
import { flowInTurns } from '../support/scenario-outcome.ts'
import { setIpvsSysctls } from './ipvs-sysctls.ts'

/*
 * Real packets through IPVS with kube-proxy's chains before it: scenarios of masquerading, policy Local, source ranges, NodePorts
 * and affinity. All scenarios go through the same rules as values in test/scenarios/trace.test.ts.
 */

const FILES: ReadonlySet<string> = new Set([
  'affinity.yaml',
  'affinity-external-local.yaml',
  'both-local.yaml',
  'cluster-ip.yaml',
  'cluster-ip-hides-the-node.yaml',
  'cluster-ip-sctp.yaml',
  'detector-none.yaml',
  'detector-prefix.yaml',
  'dual-stack.yaml',
  'external-ips.yaml',
  'external-ip-of-the-node.yaml',
  'external-local.yaml',
  'external-local-no-detector.yaml',
  'external-local-none-here.yaml',
  'external-local-several.yaml',
  'external-local-source-ranges.yaml',
  'hairpin.yaml',
  'hairpin-external.yaml',
  'internal-local.yaml',
  'load-balancer.yaml',
  'load-balancer-on-the-node.yaml',
  'masquerade-all.yaml',
  'masquerade-bit.yaml',
  'mixed-protocols.yaml',
  'no-endpoints.yaml',
  'node-port-all.yaml',
  'node-port-like-a-port.yaml',
  'node-port-primary.yaml',
  'source-ranges.yaml',
  'source-ranges-no-endpoints.yaml',
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

describe.each(scenarios.map(scenario => [`${scenario.file}: ${scenario.name}`, scenario] as const))(
  '%s',
  (_, scenario) => {
    test('real packets end where they should', () => play(withDifferences(scenario, differences)))
  },
)
