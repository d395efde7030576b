import { execFileSync } from 'node:child_process'
import { afterEach, beforeAll, describe, test } from 'vitest'
import { systemClock } from '../../src/base/clock.ts'
import { UserspacePlane } from '../../src/modes/userspace/plane.ts'
import type { Dataplane, Plan } from '../../src/reconcile/dataplane.ts'
import { openIptablesPlane } from '../support/iptables-plane.ts'
import {
  change,
  commitAll,
  computeIn,
  IPTABLES,
  type Mode,
  NFTABLES,
  nftablesOptionsOf,
  openClient,
  openPlane,
  type Stateful,
} from '../support/pipeline.ts'
import { expectLoadable, nft, nftSavers, type Saver, XT_SAVERS } from '../support/saved-ruleset.ts'
import { LOCAL_IPS, loadScenarios, type Scenario } from '../support/scenario.ts'
import { USERSPACE, userspaceOptionsOf } from '../support/userspace-mode.ts'

/* Every step of every scenario: what the kernel then holds can be saved to a file, and loaded to the same state. */

const scenarios = loadScenarios().map(scenario => [`${scenario.file}: ${scenario.name}`, scenario] as const)

beforeAll(() => {
  // The relay of the userspace mode listens there.
  for (const address of LOCAL_IPS) {
    const host = address.includes(':') ? [`${address}/128`, 'nodad'] : [`${address}/32`]
    execFileSync('ip', ['addr', 'add', ...host, 'dev', 'lo'])
  }
})

afterEach(() => {
  nft(['flush', 'ruleset'])
})

interface Saving<State extends Stateful, P extends Plan<State>> {
  readonly mode: Mode<State>
  readonly plane: Dataplane<State, P>
  readonly savers: readonly Saver[]
}

async function saveEachStep<State extends Stateful, P extends Plan<State>>(
  { config, steps }: Scenario,
  { mode, plane, savers }: Saving<State, P>,
): Promise<void> {
  let { state: held } = await plane.observe()
  let computed = computeIn(mode, config, LOCAL_IPS)
  for (const step of steps) {
    computed = change(computed, step)
    held = await commitAll(plane, held, computed.state)
    await expectLoadable(savers, plane, held, step.title)
  }
}

describe('nftables mode', () => {
  test.each(scenarios)('loads what it saved: %s', async (_, scenario) => {
    const { client, plane } = openPlane(scenario.config)
    const { tableName } = nftablesOptionsOf(scenario.config)
    try {
      await saveEachStep(scenario, { mode: NFTABLES, plane, savers: nftSavers(client, tableName) })
    } finally {
      await client.close()
    }
  })
})

describe('iptables mode', () => {
  test.each(scenarios)('loads what it saved: %s', async (_, scenario) => {
    const { client, plane } = openIptablesPlane(scenario.config)
    try {
      await saveEachStep(scenario, { mode: IPTABLES, plane, savers: XT_SAVERS })
    } finally {
      await client.close()
    }
  })
})

describe('userspace mode', () => {
  test.each(scenarios)('loads what it saved: %s', async (_, scenario) => {
    const client = openClient()
    const options = userspaceOptionsOf(scenario.config)
    const plane = new UserspacePlane({ client, clock: systemClock, options })
    plane.startForwarding()
    try {
      await plane.cleanup()
      await saveEachStep(scenario, { mode: USERSPACE, plane, savers: nftSavers(client, options.tableName) })
    } finally {
      await plane.cleanup()
      plane.destroy()
      await client.close()
    }
  })
})
