import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { Lab } from '../support/lab/lab.ts'
import { NFTABLES, openPlane } from '../support/pipeline.ts'
import { playSteps } from '../support/play-scenario.ts'
import { loadScenarios } from '../support/scenario.ts'

/** The nftables mode on an older kernel: every kind of rule that it writes decides over packets in one of these. */
const FILES: readonly string[] = [
  'affinity.yaml',
  'both-local.yaml',
  'cluster-ip-sctp.yaml',
  'detector-bridge.yaml',
  'dual-stack.yaml',
  'external-ips.yaml',
  'external-local.yaml',
  'forty-endpoints.yaml',
  'hairpin-external.yaml',
  'masquerade-all.yaml',
  'no-endpoints.yaml',
  'node-port-all.yaml',
  'source-ranges-ipv6.yaml',
  'source-ranges.yaml',
]

const scenarios = loadScenarios().filter(({ file }) => FILES.includes(file))
let lab: Lab

beforeAll(async () => {
  lab = await Lab.start({ alsoLocal: ['192.168.99.22'] })
})

afterAll(async () => {
  await lab.close()
})

test('there is a scenario for each name', () => {
  expect(scenarios.map(({ file }) => file)).toEqual(FILES)
})

describe.each(scenarios.map(scenario => [`${scenario.file}: ${scenario.name}`, scenario] as const))(
  '%s',
  (_, scenario) => {
    test('real packets end where they should', async () => {
      const { client, plane } = openPlane(scenario.config)
      try {
        await plane.cleanup()
        await playSteps(scenario, { mode: NFTABLES, plane, lab })
      } finally {
        await client.close()
      }
    })
  },
)
