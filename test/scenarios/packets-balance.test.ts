import { test } from 'vitest'
import { Lab } from '../support/lab/lab.ts'
import { NFTABLES, openPlane } from '../support/pipeline.ts'
import { playSteps } from '../support/play-scenario.ts'
import { scenarioOf } from '../support/scenario.ts'

test('real packets of a client end at one endpoint with maglev', async () => {
  const scenario = scenarioOf('nftables/balance-maglev.yaml')
  const lab = await Lab.start({ alsoLocal: ['192.168.99.22'] })
  const { client, plane } = openPlane(scenario.config)
  try {
    await plane.cleanup()
    await playSteps(scenario, { mode: NFTABLES, plane, lab })
  } finally {
    await client.close()
    await lab.close()
  }
})
