import { describe, expect, test } from 'vitest'
import { change, computeIn, IPVS } from '../../support/pipeline.ts'
import { heldOf, proofOfIpvs } from '../../support/proof-ipvs.ts'
import { LOCAL_IPS, loadScenarios } from '../../support/scenario.ts'

const scenarios = loadScenarios().filter(({ config }) => config.serviceProxyName === undefined)

describe.each(scenarios.map(scenario => [scenario.file, scenario] as const))('%s', (_, scenario) => {
  test('IPVS mode does to every packet what it promises', () => {
    let computed = computeIn(IPVS, scenario.config, LOCAL_IPS)
    for (const step of scenario.steps) {
      computed = change(computed, step)
      const { state, resolved } = computed
      const held = heldOf(state)
      const proof = proofOfIpvs(scenario.config, resolved.snapshot, { tables: state.ruleset.tables, held })
      expect(proof.differences, step.title).toEqual([])
      expect(proof).toMatchObject({ wrong: 0 })
      expect(proof.classes).toBeGreaterThan(10)
    }
  })
})
