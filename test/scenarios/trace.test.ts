import { describe, expect, test } from 'vitest'
import { assert } from '../../src/base/errors.ts'
import { isAbout, loadDifferences, withDifferences } from '../support/mode-differences.ts'
import { change, computeIn, IPVS, ip, type Stateful } from '../support/pipeline.ts'
import { expectTraced, playTraced, rolling } from '../support/play-traced.ts'
import {
  BY_CHAINS,
  BY_FEWER_RULES,
  BY_IPVS,
  BY_IPVS_CHAINS,
  BY_RULES,
  type Player,
} from '../support/players.ts'
import { IS_QUICK, runs, tried } from '../support/runs.ts'
import { LOCAL_IPS, loadScenarios, type PacketRow, type Scenario } from '../support/scenario.ts'
import { expectedLine, tracedLine } from '../support/scenario-outcome.ts'
import { createIpvsTracer } from '../support/tracers.ts'

const scenarios = loadScenarios()

test('there are at least 45 scenarios', () => {
  expect(scenarios.length).toBeGreaterThanOrEqual(45)
  expect(new Set(scenarios.map(({ name }) => name)).size).toBe(scenarios.length)
})

const differences = loadDifferences('ipvs')
const differencesOfRules = [...differences, ...loadDifferences('ipvs-rules')]
const ofChains = loadDifferences('iptables')
/** Clients that IPVS remembers for one virtual server may get the same endpoint of another by chance. */
const SEEDS = [1, 2, 3, 4, 5, 6]
const SOME_SEEDS = SEEDS.slice(0, runs(SEEDS.length, 1 / 3))

/** Of the four ways but nftables mode, `npm run ok` follows packets through one in each second scenario. */
const TURNS = 8

describe.each(
  scenarios.map((scenario, number) => [`${scenario.file}: ${scenario.name}`, scenario, number] as const),
)('%s', (_, scenario, number) => {
  const other = (mode: number) => test.skipIf(IS_QUICK && number % TURNS !== 2 * mode)

  test('every way through the computed rules is the expected one', () => {
    expectTraced(BY_RULES, scenario)
  })

  other(0)('every way through sets, rules and virtual servers is the expected one', () => {
    const remembers = scenario.steps.some(({ rows }) => rows.some(isSticky))
    for (const seed of remembers ? SOME_SEEDS : SEEDS.slice(0, 1))
      expectTraced(BY_IPVS, withDifferences(scenario, differences), seed)
  })

  other(1)('and those with --ipvs-rules=iptables are the same', () => {
    const remembers = scenario.steps.some(({ rows }) => rows.some(isSticky))
    for (const seed of remembers ? SOME_SEEDS : SEEDS.slice(0, 1))
      expectTraced(BY_IPVS_CHAINS, withDifferences(scenario, differencesOfRules), seed)
  })

  other(2)('every way through the chains of iptables is the expected one', () => {
    expectTraced(BY_CHAINS, withDifferences(scenario, ofChains))
  })

  other(3)("IPVS serves the node's own connections as they are when the kernel chooses their source", () => {
    const { rows, played } = fromTheirDestinations(withDifferences(scenario, differences))
    expect(played).toEqual(rows.map(expectedLine))
  })
})

// A mode that renders a thousand chains, whatever the scenario: packets-iptables.test.ts sends real packets through all of them.
describe.skipIf(IS_QUICK).each(
  tried(scenarios.length)
    .flatMap(number => scenarios[number - 1] ?? [])
    .map(scenario => [`${scenario.file}: ${scenario.name}`, scenario] as const),
)('with --iptables-optimize: %s', (_, scenario) => {
  test('every way through the chains of iptables is the expected one', () => {
    expectTraced(BY_FEWER_RULES, withDifferences(scenario, ofChains))
  })
})

function isSticky({ expected }: PacketRow): boolean {
  return expected.verdict === 'DNAT' && expected.sticky !== undefined
}

/**
 * What the node sends to a bound address comes from that address, unless a process says otherwise. No endpoint could
 * answer it: it is always masqueraded.
 */
function fromTheirDestinations(scenario: Scenario): {
  readonly rows: readonly PacketRow[]
  readonly played: readonly string[]
} {
  let computed = computeIn(IPVS, scenario.config, LOCAL_IPS)
  const rows: PacketRow[] = []
  const played: string[] = []
  for (const step of scenario.steps) {
    computed = change(computed, step)
    const tracer = createIpvsTracer(computed.state)
    for (const row of step.rows) {
      if (row.from !== 'node' || isSticky(row) || !computed.state.addresses.has(ip(row.destination))) continue
      const { expected } = row
      const own: PacketRow = {
        ...row,
        source: row.destination,
        expected: expected.verdict === 'DNAT' ? { ...expected, source: 'masqueraded' } : expected,
      }
      rows.push(own)
      played.push(tracedLine(own, { tracer, labels: new Map(), random: rolling(1), dynamic: new Map() }))
    }
  }
  return { rows, played }
}

/** What becomes of the rows that a difference is about where it is not known, by seed. */
function withoutIt<State extends Stateful>(player: Player<State>, mode: string) {
  const all = loadDifferences(mode)
  return all.map(its => {
    const scenario = scenarios.find(({ file }) => file === its.file)
    assert(scenario !== undefined, `there is no scenario ${its.file}`)
    const rows = scenario.steps.flatMap(step => step.rows.filter(row => isAbout(its, row, step)))
    const others = withDifferences(
      scenario,
      all.filter(other => other !== its),
    )
    const outcomes = () =>
      SEEDS.map(seed =>
        playTraced(player, others, seed).flatMap(step =>
          step.outcomes.filter(({ row }) => isAbout(its, row, step)),
        ),
      )
    return { name: `${its.file}: ${its.row}`, rows, outcomes }
  })
}

// `npm run ok` leaves it to `npm test` whether a difference is still one.
describe.skipIf(IS_QUICK).each([
  ['IPVS', withoutIt(BY_IPVS, 'ipvs')],
  ['IPVS beside chains of iptables in', withoutIt(BY_IPVS_CHAINS, 'ipvs-rules')],
  ['iptables', withoutIt(BY_CHAINS, 'iptables')],
] as const)('the differences of %s mode', (_, differences) => {
  test.each(differences.map(its => [its.name, its] as const))('hold: %s', (_, { rows, outcomes }) => {
    expect(rows.length, 'rows of the scenario that are this one').toBeGreaterThan(0)
    const asElsewhere = outcomes().map(seen => seen.some(({ row, line }) => line === expectedLine(row)))
    expect(asElsewhere, 'seeds with which the packet has the fate of other modes').toContain(false)
  })
})
