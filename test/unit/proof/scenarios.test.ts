import { describe, expect, test } from 'vitest'
import { change, computeIn, IPTABLES, IPTABLES_OPTIMIZED, NFTABLES } from '../../support/pipeline.ts'
import { proofOf } from '../../support/proof.ts'
import { PROVING, tablesOfIptables } from '../../support/proof-iptables.ts'
import { IS_QUICK, tried } from '../../support/runs.ts'
import { LOCAL_IPS, loadScenarios } from '../../support/scenario.ts'

/** Both hooks, addresses of both sides in both families, a protocol and two ports: no packet is in no class or in two. */
const ALL = 2 * (2 ** 64 + 2 ** 256) * 2 ** 40

const all = loadScenarios()
/** In `npm run ok`, a fourth: the tracer follows packets through the same rules of all scenarios there. */
const scenarios = IS_QUICK ? tried(all.length, 0, 1 / 4).flatMap(number => all[number - 1] ?? []) : all

describe.each(scenarios.map(scenario => [scenario.file, scenario] as const))('%s', (_, scenario) => {
  test('the rules of nftables mode do to every packet what Kubernetes says', () => {
    let computed = computeIn(NFTABLES, scenario.config, LOCAL_IPS)
    for (const step of scenario.steps) {
      computed = change(computed, step)
      const proof = proofOf(scenario.config, computed.resolved.snapshot, computed.state.ruleset.tables)
      expect(proof.differences, step.title).toEqual([])
      expect(proof).toMatchObject({ wrong: 0 })
      expect(proof.classes).toBeGreaterThan(10)
      expect(proof.packets / ALL).toBeCloseTo(1, 9)
    }
  })

  test.each([
    ['iptables mode', IPTABLES],
    ['iptables mode with --iptables-optimize', IPTABLES_OPTIMIZED],
  ])('the rules of %s do to every packet what it promises', (_, mode) => {
    let computed = computeIn(mode, scenario.config, LOCAL_IPS)
    for (const step of scenario.steps) {
      computed = change(computed, step)
      const tables = tablesOfIptables(computed.state)
      const proof = proofOf(scenario.config, computed.resolved.snapshot, tables, PROVING)
      expect(proof.differences, step.title).toEqual([])
      expect(proof).toMatchObject({ wrong: 0 })
      expect(proof.classes).toBeGreaterThan(10)
      expect(proof.packets / ALL).toBeCloseTo(1, 9)
    }
  })
})
