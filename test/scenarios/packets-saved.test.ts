import { afterEach, describe, test } from 'vitest'
import { systemClock } from '../../src/base/clock.ts'
import { createUserspacePlane } from '../../src/dataplane/userspace/plane.ts'
import type { Dataplane, Plan } from '../../src/reconcile/dataplane.ts'
import {
  change,
  commitAll,
  computeIn,
  type Mode,
  NFTABLES,
  openClient,
  planeOn,
  type Stateful,
} from '../support/pipeline.ts'
import { expectLoadable, nft } from '../support/saved-ruleset.ts'
import { LOCAL_IPS, loadScenarios, type Scenario } from '../support/scenario.ts'
import { USERSPACE, userspaceOptionsOf } from '../support/userspace-mode.ts'

/* Every step of every scenario: what the kernel then holds can be saved to a file, and loaded to the same state. */

const scenarios = loadScenarios().map(scenario => [`${scenario.file}: ${scenario.name}`, scenario] as const)

afterEach(() => {
  nft(['flush', 'ruleset'])
})

type Savable = Stateful & Parameters<typeof expectLoadable>[1]

async function saveEachStep<State extends Savable, P extends Plan<State> & { readonly transaction: unknown }>(
  { config, steps }: Scenario,
  mode: Mode<State>,
  plane: Dataplane<State, P>,
): Promise<void> {
  let held = plane.empty
  let computed = computeIn(mode, config, LOCAL_IPS)
  for (const step of steps) {
    computed = change(computed, step)
    held = await commitAll(plane, held, computed.state)
    await expectLoadable(plane, held, step.title)
  }
}

describe('nftables mode', () => {
  test.each(scenarios)('loads what it saved: %s', async (_, scenario) => {
    const client = openClient()
    try {
      await saveEachStep(scenario, NFTABLES, planeOn(client, scenario.config))
    } finally {
      await client.close()
    }
  })
})

describe('userspace mode', () => {
  test.each(scenarios)('loads what it saved: %s', async (_, scenario) => {
    const client = openClient()
    const options = userspaceOptionsOf(scenario.config)
    const plane = createUserspacePlane({ client, clock: systemClock, options })
    plane.startRelaying()
    try {
      await plane.cleanup()
      await saveEachStep(scenario, USERSPACE, plane)
    } finally {
      await plane.cleanup()
      plane.destroy()
      await client.close()
    }
  })
})
