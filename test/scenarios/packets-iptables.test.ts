import { writeFileSync } from 'node:fs'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { foreignLines, savedLines, writeForeignRules } from '../support/foreign-rules.ts'
import { openIptablesPlane } from '../support/iptables-plane.ts'
import { Lab } from '../support/lab/lab.ts'
import { loadDifferences, withDifferences } from '../support/mode-differences.ts'
import { IPTABLES, IPTABLES_OPTIMIZED } from '../support/pipeline.ts'
import { playSteps } from '../support/play-scenario.ts'
import { loadScenarios, type Scenario } from '../support/scenario.ts'

/* Every scenario of this folder with real packets through chains of iptables, among those of other agents. */

let lab: Lab
let foreign: readonly string[]

beforeAll(async () => {
  lab = await Lab.start({ alsoLocal: ['192.168.99.22'] })
  // The daemon's part: it makes NodePorts at 127.0.0.1 possible.
  writeFileSync('/proc/sys/net/ipv4/conf/all/route_localnet', '1')
  writeForeignRules()
  foreign = foreignLines()
})

afterAll(async () => {
  await lab.close()
})

async function play(scenario: Scenario): Promise<void> {
  const { client, plane } = openIptablesPlane(scenario.config)
  try {
    await plane.cleanup()
    expect(savedLines(), 'before and between scenarios').toEqual(foreign)
    // Some of it is kubelet's as much as ours.
    const { state: before } = await plane.observe()
    await playSteps(scenario, { mode: IPTABLES, plane, before, lab })
    expect(foreignLines(), 'beside our chains').toEqual(foreign)
  } finally {
    await client.close()
  }
}

/** From what the scenario before left, as a daemon that starts again with other Services. */
async function playOptimized(scenario: Scenario): Promise<void> {
  const { client, plane } = openIptablesPlane(scenario.config, { optimize: true })
  try {
    const { state: before } = await plane.observe()
    await playSteps(scenario, { mode: IPTABLES_OPTIMIZED, plane, before, lab })
    expect(foreignLines(), 'beside our chains').toEqual(foreign)
  } finally {
    await client.close()
  }
}

const differences = loadDifferences('iptables')
const scenarios = loadScenarios().map(
  scenario => [`${scenario.file}: ${scenario.name}`, withDifferences(scenario, differences)] as const,
)

describe('in the chains of kube-proxy', () => {
  test.each(scenarios)('real packets end where they should: %s', (_, scenario) => play(scenario))
})

describe('with --iptables-optimize', () => {
  test.each(scenarios)('real packets end where they should: %s', (_, scenario) => playOptimized(scenario))
})
