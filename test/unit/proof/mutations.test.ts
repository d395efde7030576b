import { expect, test } from 'vitest'
import type { Chain, Rule } from '../../../src/kernel/nft/state.ts'
import { printRule } from '../../../src/kernel/xt/print.ts'
import type { XtRule } from '../../../src/kernel/xt/rule.ts'
import type { Promises } from '../../../src/model/promises.ts'
import { CHAIN_EARLY_POSTROUTING } from '../../../src/modes/common/rules.ts'
import type { IptablesState } from '../../../src/modes/iptables/state.ts'
import type { IpvsState } from '../../../src/modes/ipvs/state.ts'
import type { NftablesState } from '../../../src/modes/nftables/state.ts'
import { classesOf } from '../../../src/proof/atoms.ts'
import { createTracer, type Tracer } from '../../../src/proof/evaluate/trace.ts'
import { meaningOf } from '../../../src/proof/meanings.ts'
import { nameOf } from '../../../src/proof/packet-class.ts'
import type { Proof } from '../../../src/proof/prove.ts'
import {
  type Computed,
  compute,
  IPTABLES,
  IPVS,
  ip,
  type Mode,
  NFTABLES,
  type Stateful,
} from '../../support/pipeline.ts'
import { meaningConfigOf, proofOf, rule } from '../../support/proof.ts'
import { type HeldChain, heldChains, PROVING, tablesOfChains } from '../../support/proof-iptables.ts'
import { heldOf, mutateOutside, PROVING_IPVS, proofOfIpvs } from '../../support/proof-ipvs.ts'
import { mutate } from '../../support/proof-mutations.ts'
import { outcomesOf, packetOf } from '../../support/proof-packets.ts'
import { mutateChains } from '../../support/proof-xt-mutations.ts'
import { IS_QUICK, runs } from '../../support/runs.ts'
import { LOCAL_IPS } from '../../support/scenario.ts'
import { createIpvsTracer, createXtTracer } from '../../support/tracers.ts'
import { allStops, generator } from '../../support/walk.ts'
import { jump } from './expressions.ts'

/** `PROOF_SEED=N` takes the same mutations again, `PROOF_MUTATIONS=N` more of them. */
const SEED = Number(process.env.PROOF_SEED ?? 18)
const localIps = new Set(LOCAL_IPS.map(ip))

type Random = (bound: number) => number

/** A change of a state: whether the proof finds it, and the tracers before and after. */
interface Mutation {
  readonly what: string
  readonly prove: () => Proof
  readonly tracers: () => readonly [Tracer, Tracer]
}

interface Mutated<State extends Stateful> {
  readonly mode: Mode<State>
  readonly promises: Promises | undefined
  /** Mutations that are tried. */
  readonly count: number
  readonly mutate: (computed: Computed<State>, random: Random) => Mutation | undefined
}

/** Spare chains for the next endpoint, fallbacks of a commit in flight, and rules without packets survive: see docs/proof.md. */
const IN_NFTABLES: Mutated<NftablesState> = {
  mode: NFTABLES,
  promises: undefined,
  count: runs(90, 1 / 9),
  mutate: ({ config, resolved, state }, random) => {
    const { tables } = state.ruleset
    const mutation = mutate(tables, random)
    return (
      mutation && {
        what: mutation.what,
        prove: () => proofOf(config, resolved.snapshot, mutation.tables),
        tracers: () => [createTracer({ tables }), createTracer({ tables: mutation.tables })],
      }
    )
  },
}

/** Rules for packets that are not the first of their connection, comments, and the order of rules that nothing meets twice survive. */
const IN_IPTABLES: Mutated<IptablesState> = {
  mode: IPTABLES,
  promises: PROVING.promises,
  count: runs(300, 1 / 6),
  mutate: ({ config, resolved, state }, random) => {
    const chains = heldChains(state)
    const mutation = mutateChains(chains, random)
    return (
      mutation && {
        what: mutation.what,
        prove: () => proofOf(config, resolved.snapshot, tablesOfChains(mutation.chains), PROVING),
        tracers: () => [tracerOfChains(chains), tracerOfChains(mutation.chains)],
      }
    )
  },
}

function tracerOfChains(chains: readonly HeldChain[]): Tracer {
  const last: readonly XtRule[] = []
  const held = chains.map(chain => ({ ...chain, last }))
  return createXtTracer(() => ({ chains: held, jumps: [], print: printRule }))
}

/** Entries for programs that read the sets of kube-proxy, and those of LOOP-BACK that no Service leads to, survive. */
const IN_IPVS: Mutated<IpvsState> = {
  mode: IPVS,
  promises: PROVING_IPVS.promises,
  count: runs(120, 1 / 4),
  mutate: ({ config, resolved, state }, random) => {
    const [what, mutated] = mutateOutside(state, random) ?? []
    if (config.serviceProxyName !== undefined || what === undefined || mutated === undefined) return undefined
    const kernel = { tables: mutated.ruleset.tables, held: heldOf(mutated) }
    return {
      what,
      prove: () => proofOfIpvs(config, resolved.snapshot, kernel),
      tracers: () => [createIpvsTracer(state), createIpvsTracer(mutated)],
    }
  },
}

/** Gives the classes with a difference; undefined where chains lead back, which the kernel rejects. */
function wrongIn(prove: () => Proof): number | undefined {
  try {
    return prove().wrong
  } catch (error) {
    if (error instanceof Error && error.message.startsWith('chains go round in circles')) return undefined
    throw error
  }
}

function expectFound<State extends Stateful>({ mode, promises, count, mutate }: Mutated<State>): void {
  const total = Number(process.env.PROOF_MUTATIONS ?? count)
  const random = generator(SEED)
  const stops = allStops(mode)
  const survivors: string[] = []
  let caught = 0
  while (caught + survivors.length < total) {
    const stop = stops[random(stops.length)]
    const mutation = stop && mutate(stop.computed, random)
    const wrong = mutation && wrongIn(mutation.prove)
    if (stop === undefined || mutation === undefined || wrong === undefined) continue
    if (wrong > 0) {
      caught++
      continue
    }
    const name = `${stop.name}, ${mutation.what}`
    survivors.push(name)
    const { config, resolved } = stop.computed
    const meanings = meaningOf(resolved.snapshot, {
      ...meaningConfigOf(config),
      ...(promises && { promises }),
    })
    const [before, after] = mutation.tracers()
    for (const its of meanings.flatMap(meaning => [...classesOf(meaning)])) {
      const packet = packetOf(its, { localIps, random })
      if (packet === undefined) continue
      const seen = outcomesOf(after.ways(packet, { localIps }))
      expect(seen, `${name}: ${nameOf(its)}`).toEqual(outcomesOf(before.ways(packet, { localIps })))
    }
  }
  expect(caught, survivors.join('\n')).toBeGreaterThan(total / 4)
  // Otherwise no single packet was followed.
  if (!IS_QUICK) expect(survivors).not.toEqual([])
  if (process.env.PROOF_SURVIVORS === '1') process.stderr.write(`${survivors.join('\n')}\n${caught} caught\n`)
}

test.each([
  ['nftables', () => expectFound(IN_NFTABLES)],
  ['iptables', () => expectFound(IN_IPTABLES)],
  ['IPVS', () => expectFound(IN_IPVS)],
])(
  `each change of the kernel's state in %s mode is found, or changes no packet (PROOF_SEED=${SEED})`,
  (_, run) => run(),
)

test('a priority of the rules on packets to no Service is found, also where its value stays', () => {
  const { config, resolved, state } = compute({}, LOCAL_IPS)
  const tables = state.ruleset.tables.map(table => {
    const chains = new Map(table.chains)
    const chain = chains.get(CHAIN_EARLY_POSTROUTING)
    if (chain === undefined) throw new Error(`${table.family} has no ${CHAIN_EARLY_POSTROUTING}`)
    const all = (its: Rule): Rule => ({
      ...its,
      expressions: its.expressions.map(each =>
        each.kind === 'cmp' ? { ...each, data: '\xff\xff\xff\xff' } : each,
      ),
    })
    return { ...table, chains: chains.set(chain.name, { ...chain, rules: chain.rules.map(all) }) }
  })
  const { wrong, differences } = proofOf(config, resolved.snapshot, tables)
  expect(wrong).toBeGreaterThan(0)
  expect(differences.map(({ kernel }) => kernel)).toContain('pass, with a priority of the rules')
})

test('a chain of ours that leads to itself is a difference', () => {
  const { config, resolved, state } = compute({}, LOCAL_IPS)
  const tables = state.ruleset.tables.map(table => {
    const services = table.chains.get('services')
    if (services === undefined) throw new Error('no chain services')
    const chains = new Map(table.chains).set('services', {
      ...services,
      rules: [rule(jump('services')), ...services.rules],
    })
    return { ...table, chains }
  })
  const { differences, wrong } = proofOf(config, resolved.snapshot, tables)
  expect(wrong).toBeGreaterThan(0)
  expect(differences[0]?.kernel).toBe('unknown: chains go round in circles at services')
})

test('a client that is remembered where no rule looks it up is found', () => {
  const stops = allStops(NFTABLES).filter(({ name }) => name === 'affinity.yaml[0]')
  for (const { config, resolved, state } of stops.map(({ computed }) => computed)) {
    const tables = state.ruleset.tables.map(table => {
      const chains = [...table.chains.values()].map((chain): [string, Chain] => {
        return [chain.name, { ...chain, rules: chain.rules.filter(rule => !looksUp(rule, 'affinity')) }]
      })
      return { ...table, chains: new Map(chains) }
    })
    const [first] = proofOf(config, resolved.snapshot, tables).differences
    expect(first?.kernel).toBe('no rule reads the map of clients that another rule writes')
  }
  expect(stops).toHaveLength(1)
})

function looksUp({ expressions }: Rule, set: string): boolean {
  return expressions.some(its => its.kind === 'lookup' && its.set === set)
}
