import { describe, expect, test } from 'vitest'
import { isLogOnly } from '../../../src/kernel/nft/state.ts'
import { logGroupOf } from '../../../src/modes/common/logs.ts'
import type { IptablesState } from '../../../src/modes/iptables/state.ts'
import { change, computeIn, IPTABLES, IPTABLES_OPTIMIZED, NFTABLES } from '../../support/pipeline.ts'
import { proofOf } from '../../support/proof.ts'
import { PROVING, tablesOfIptables } from '../../support/proof-iptables.ts'
import { IS_QUICK, tried } from '../../support/runs.ts'
import { LOCAL_IPS, LOGGED, loadScenarios, scenarioOf } from '../../support/scenario.ts'

/** Both hooks, addresses of both sides in both families, a protocol and two ports: no packet is in no class or in two. */
const ALL = 2 * (2 ** 64 + 2 ** 256) * 2 ** 40

const all = loadScenarios()
/** In `npm run ok`, an eighth: the tracer follows packets through the same rules of all scenarios there. */
const scenarios = IS_QUICK ? tried(all.length, 0, 1 / 8).flatMap(number => all[number - 1] ?? []) : all

describe.each(scenarios.map(scenario => [scenario.file, scenario] as const))('%s', (_, scenario) => {
  test('the rules of nftables mode treat every packet as Kubernetes specifies', () => {
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

describe('rules that log what they reject and drop', () => {
  test.each(LOGGED)('treat every packet as Kubernetes specifies: %s', file => {
    const { config, steps } = scenarioOf(file)
    let computed = computeIn(NFTABLES, { ...config, logRejects: 5 }, LOCAL_IPS)
    for (const step of steps) {
      computed = change(computed, step)
      const { tables } = computed.state.ruleset
      const { differences, wrong } = proofOf(config, computed.resolved.snapshot, tables)
      expect([differences, wrong], step.title).toEqual([[], 0])
    }
    expect(logGroupOf(computed.state.ruleset.tables)).toBe(5)
  })

  test.each([
    ['iptables mode', IPTABLES],
    ['iptables mode with --iptables-optimize', IPTABLES_OPTIMIZED],
  ])('do to every packet what %s promises', (_, mode) => {
    let logging = 0
    for (const file of LOGGED) {
      const { config, steps } = scenarioOf(file)
      let computed = computeIn(mode, { ...config, logRejects: 5 }, LOCAL_IPS)
      for (const step of steps) {
        computed = change(computed, step)
        const tables = tablesOfIptables(computed.state)
        const { differences, wrong } = proofOf(config, computed.resolved.snapshot, tables, PROVING)
        expect([differences, wrong], `${file} ${step.title}`).toEqual([[], 0])
        const rules = tables.flatMap(({ chains }) => [...chains.values()].flatMap(its => its.rules))
        logging += rules.filter(isLogOnly).length
      }
    }
    expect(logging).toBeGreaterThan(LOGGED.length)
  })
})

test.each([
  ['affinity.yaml', 1],
  ['cluster-ip.yaml', 0],
])('iptables mode assumes that a client is in one list of a Service (%s)', (file, count) => {
  const { config, steps } = scenarioOf(file)
  const computed = steps.reduce(change<IptablesState>, computeIn(IPTABLES, config, LOCAL_IPS))
  const { assumptions } = proofOf(
    config,
    computed.resolved.snapshot,
    tablesOfIptables(computed.state),
    PROVING,
  )
  expect(assumptions.filter(its => its.includes('one of the lists of recent'))).toHaveLength(count)
})
