import { afterAll, beforeAll, describe, test } from 'vitest'
import { Lab } from '../../support/lab/lab.ts'
import { playInUserspace } from '../../support/play-userspace.ts'
import { loadScenarios } from '../../support/scenario.ts'

let lab: Lab

beforeAll(async () => {
  lab = await Lab.start({ alsoLocal: ['192.168.99.22'] })
})

afterAll(async () => {
  await lab.close()
})

describe.each(loadScenarios().map(scenario => [`${scenario.file}: ${scenario.name}`, scenario] as const))(
  '%s',
  (_, scenario) => {
    test('real packets and connections end where they should', () => playInUserspace(scenario, lab))
  },
)
