import { readFileSync } from 'node:fs'
import { afterAll, beforeAll, describe, test } from 'vitest'
import { UPSTREAM_SERVICES } from '../scenarios/upstream/services.ts'
import { openIpvsPlane } from '../support/ipvs-plane.ts'
import { Lab } from '../support/lab/lab.ts'
import { eventually } from '../support/patience.ts'
import { IPVS } from '../support/pipeline.ts'
import { type MoreOfSteps, playSteps } from '../support/play-scenario.ts'
import { playUpstream } from '../support/play-upstream.ts'
import type { Scenario } from '../support/scenario.ts'
import { flowInTurns } from '../support/scenario-outcome.ts'
import { setIpvsSysctls } from './ipvs-sysctls.ts'

/* Upstream's tests of Services with real packets through IPVS; in the other modes: test/scenarios/upstream. */

let lab: Lab

beforeAll(async () => {
  lab = await Lab.start()
  setIpvsSysctls()
})

afterAll(async () => {
  await lab.close()
})

async function play(scenario: Scenario, more: MoreOfSteps): Promise<void> {
  const { plane, close } = openIpvsPlane(scenario.config)
  try {
    await plane.cleanup()
    await playSteps(scenario, { mode: IPVS, plane, lab, flowOf: flowInTurns, more })
  } finally {
    await close()
  }
}

/** IPVS remembers a client for as long as a connection of it is left, and a half-open one takes a minute to go. */
async function settled(): Promise<void> {
  const left = () => readFileSync('/proc/thread-self/net/ip_vs_conn', 'utf8').trim().split('\n').slice(1)
  await eventually(() => left().length === 0, {
    limitMs: 300_000,
    describe: () => `connections are left: ${left().join('\n')}`,
  })
}

const played = UPSTREAM_SERVICES.filter(({ unplayed }) => unplayed === undefined)

describe('in IPVS mode', () => {
  test.each(played.map(its => [its.title, its] as const))('%s', (_, its) =>
    playUpstream(its, { lab, play, settled }),
  )
})
