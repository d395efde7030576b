import { execFileSync } from 'node:child_process'
import { writeFileSync } from 'node:fs'
import { afterAll, beforeAll, expect, test } from 'vitest'
import { append } from '../../src/base/collections.ts'
import { diffRulesets } from '../../src/kernel/nft/diff.ts'
import type { Ruleset, Table } from '../../src/kernel/nft/state.ts'
import { printRule } from '../../src/kernel/xt/print.ts'
import { builtinHook, type XtTableName } from '../../src/kernel/xt/scope.ts'
import { Lab } from '../support/lab/lab.ts'
import { loadDifferences, withDifferences } from '../support/mode-differences.ts'
import {
  type Computed,
  change,
  computeIn,
  IPTABLES,
  type Mode,
  NFTABLES,
  openClient,
  type Stateful,
} from '../support/pipeline.ts'
import { proofOf } from '../support/proof.ts'
import { type HeldChain, heldChains, PROVING, tablesOfChains } from '../support/proof-iptables.ts'
import { mutate } from '../support/proof-mutations.ts'
import { mutateChains } from '../support/proof-xt-mutations.ts'
import { runs } from '../support/runs.ts'
import { LOCAL_IPS, loadScenarios, type PacketRow, type Scenario } from '../support/scenario.ts'
import { expectedLine, flowOf, seenLine } from '../support/scenario-outcome.ts'
import { generator } from '../support/walk.ts'

/*
 * Changes of rules that the proof accepts, judged by real packets: the single packets of test/unit/proof follow the rules by
 * the evaluator of the proof.
 */

/** `PROOF_SEED=N` takes the same mutations again, `PROOF_SURVIVORS=N` more of them. */
const SEED = Number(process.env.PROOF_SEED ?? 17)
const SURVIVORS = Number(process.env.PROOF_SURVIVORS ?? runs(48))
/** The kernel or iptables rejects some of what the proof accepts: rules that nothing leads to. */
const REJECTED_MAX = SURVIVORS

let lab: Lab

beforeAll(async () => {
  lab = await Lab.start({ alsoLocal: ['192.168.99.22'] })
  writeFileSync('/proc/sys/net/ipv4/conf/all/route_localnet', '1')
})

afterAll(async () => {
  await lab.close()
})

/** Changed rules that the proof accepts. */
interface Survivor {
  readonly what: string
  /** Puts the rules into the kernel, which holds no others. Returns false where it rejects them. */
  readonly put: () => Promise<boolean>
}

interface Judged<State extends Stateful> {
  readonly mode: Mode<State>
  readonly scenarios: readonly Scenario[]
  /** Changes the rules of a state; undefined where the proof finds the change, or there is nothing to change. */
  readonly survivorOf: (computed: Computed<State>, random: Random) => Survivor | undefined
}

type Random = (bound: number) => number

const BY_CHAINS: Judged<(typeof IPTABLES)['empty']> = {
  mode: IPTABLES,
  scenarios: loadScenarios().map(its => withDifferences(its, loadDifferences('iptables'))),
  survivorOf({ config, resolved, state }, random) {
    const mutation = mutateChains(heldChains(state), random)
    if (mutation === undefined) return undefined
    const { what, chains } = mutation
    if (proofOf(config, resolved.snapshot, tablesOfChains(chains), PROVING).wrong > 0) return undefined
    return { what, put: async () => restore(chains) }
  },
}

const BY_RULES: Judged<(typeof NFTABLES)['empty']> = {
  mode: NFTABLES,
  scenarios: loadScenarios(),
  survivorOf({ config, resolved, state }, random) {
    const mutation = mutate(state.ruleset.tables, random)
    if (mutation === undefined || leadsBack(mutation.tables)) return undefined
    const { what, tables } = mutation
    if (proofOf(config, resolved.snapshot, tables).wrong > 0) return undefined
    return { what, put: () => commit({ tables }) }
  },
}

/** Whether a chain may lead to itself, which no kernel accepts. */
function leadsBack(tables: readonly Table[]): boolean {
  return tables.some(({ chains }) => {
    const open = new Set<string>()
    const isBack = (name: string): boolean => {
      if (open.has(name)) return true
      open.add(name)
      const rules = chains.get(name)?.rules ?? []
      const targets = rules.flatMap(({ expressions }) =>
        expressions.flatMap(each => (each.kind === 'verdict' ? (each.verdict.chain ?? []) : [])),
      )
      const found = targets.some(isBack)
      open.delete(name)
      return found
    }
    return [...chains.keys()].some(isBack)
  })
}

function restore(chains: readonly HeldChain[]): boolean {
  for (const [family, program] of [
    ['ip', 'iptables'],
    ['ip6', 'ip6tables'],
  ] as const) {
    const tables = new Map<XtTableName, HeldChain[]>()
    for (const chain of chains) if (chain.family === family) append(tables, chain.table, chain)
    const text = [...tables].flatMap(([table, its]) => [
      `*${table}`,
      ...its.map(({ name }) => `:${name} ${builtinHook(table, name) === undefined ? '-' : 'ACCEPT'} [0:0]`),
      ...its.flatMap(({ name, rules }) => rules.map(rule => `-A ${name} ${printRule(rule, family)}`)),
      'COMMIT',
      '',
    ])
    try {
      execFileSync(`${program}-nft-restore`, { input: text.join('\n'), stdio: ['pipe', 'ignore', 'ignore'] })
    } catch {
      return false
    }
  }
  return true
}

async function commit(wanted: Ruleset): Promise<boolean> {
  const client = openClient()
  try {
    const { transaction } = diffRulesets({ tables: [] }, wanted, { lateSets: new Set() })
    return (await client.commit(transaction)).outcome === 'committed'
  } finally {
    await client.close()
  }
}

function isSticky({ expected }: PacketRow): boolean {
  return expected.verdict === 'DNAT' && expected.sticky !== undefined
}

async function playSurvivors<State extends Stateful>({
  mode,
  scenarios,
  survivorOf,
}: Judged<State>): Promise<void> {
  const random = generator(SEED)
  let [played, rejected] = [0, 0]
  while (played < SURVIVORS) {
    const scenario = scenarios[random(scenarios.length)]
    const until = random(scenario?.steps.length ?? 1)
    let computed = computeIn(mode, scenario?.config ?? {}, LOCAL_IPS)
    for (const step of scenario?.steps.slice(0, until + 1) ?? []) computed = change(computed, step)
    // Later steps expect clients where earlier ones have sent them; the rules begin with none.
    const rows = (scenario?.steps[until]?.rows ?? []).filter(row => until === 0 || !isSticky(row))
    const survivor = rows.length === 0 ? undefined : survivorOf(computed, random)
    if (survivor === undefined) continue
    execFileSync('nft', ['flush', 'ruleset'])
    if (!(await survivor.put())) {
      expect(++rejected, survivor.what).toBeLessThan(REJECTED_MAX)
      continue
    }
    played++
    const outcomes = await lab.trace(rows.map(flowOf))
    const labels = new Map<string, string>()
    const seen = rows.flatMap((row, index) => {
      const outcome = outcomes[index]
      return outcome === undefined ? [] : [seenLine(row, outcome, labels)]
    })
    expect(seen, `${scenario?.file}[${until}], ${survivor.what}`).toEqual(rows.map(expectedLine))
  }
}

test(`real packets end where they should behind changes of iptables rules that the proof accepts (PROOF_SEED=${SEED})`, () =>
  playSurvivors(BY_CHAINS))

test(`and behind those of nftables mode (PROOF_SEED=${SEED})`, () => playSurvivors(BY_RULES))
