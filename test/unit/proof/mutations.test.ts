import { expect, test } from 'vitest'
import { NFT_JUMP } from '../../../src/kernel/nft/constants.ts'
import type { Chain, Rule } from '../../../src/kernel/nft/state.ts'
import { CHAIN_EARLY_POSTROUTING } from '../../../src/modes/common/rules.ts'
import { classesOf } from '../../../src/proof/atoms.ts'
import { createTracer } from '../../../src/proof/evaluate/trace.ts'
import { meaningOf } from '../../../src/proof/meanings.ts'
import { nameOf } from '../../../src/proof/packet-class.ts'
import type { Proof } from '../../../src/proof/prove.ts'
import { compute, ip, NFTABLES } from '../../support/pipeline.ts'
import { meaningConfigOf, proofOf } from '../../support/proof.ts'
import { mutate } from '../../support/proof-mutations.ts'
import { outcomesOf, packetOf } from '../../support/proof-packets.ts'
import { runs } from '../../support/runs.ts'
import { LOCAL_IPS } from '../../support/scenario.ts'
import { allStops, generator } from '../../support/walk.ts'

/** `PROOF_SEED=N` takes the same mutations again, `PROOF_MUTATIONS=N` more of them. */
const SEED = Number(process.env.PROOF_SEED ?? 17)
const MUTATIONS = Number(process.env.PROOF_MUTATIONS ?? runs(90, 1 / 9))

const localIps = new Set(LOCAL_IPS.map(ip))
/** Gives the classes with a difference; undefined where chains lead back, which the kernel rejects. */
function wrongIn(prove: () => Proof): number | undefined {
  try {
    return prove().wrong
  } catch (error) {
    if (error instanceof Error && error.message.startsWith('chains go round in circles')) return undefined
    throw error
  }
}

test(`each of ${MUTATIONS} changes of the kernel's state is found, or changes no packet (PROOF_SEED=${SEED})`, () => {
  const random = generator(SEED)
  const stops = allStops(NFTABLES)
  const survivors: string[] = []
  let caught = 0
  while (caught + survivors.length < MUTATIONS) {
    const stop = stops[random(stops.length)]
    if (stop === undefined) continue
    const { config, resolved, state } = stop.computed
    const { tables } = state.ruleset
    const mutation = mutate(tables, random)
    if (mutation === undefined) continue
    const wrong = wrongIn(() => proofOf(config, resolved.snapshot, mutation.tables))
    if (wrong === undefined) continue
    if (wrong > 0) {
      caught++
      continue
    }
    survivors.push(mutation.what)
    const [before, after] = [createTracer({ tables }), createTracer({ tables: mutation.tables })]
    for (const meaning of meaningOf(resolved.snapshot, meaningConfigOf(config)))
      for (const its of classesOf(meaning)) {
        const packet = packetOf(its, { localIps, random })
        if (packet === undefined) continue
        const seen = outcomesOf(after.ways(packet, { localIps }))
        expect(seen, `${stop.name}, ${mutation.what}: ${nameOf(its)}`).toEqual(
          outcomesOf(before.ways(packet, { localIps })),
        )
      }
  }
  // Spare chains for the next endpoint, fallbacks of a commit in flight, and rules without packets: see docs/proof.md.
  expect(caught, survivors.join('\n')).toBeGreaterThan(MUTATIONS / 4)
  if (process.env.PROOF_SURVIVORS === '1') process.stderr.write(`${survivors.join('\n')}\n${caught} caught\n`)
})

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
  const again: Rule = {
    expressions: [{ kind: 'verdict', verdict: { code: NFT_JUMP, chain: 'services' } }],
    comment: '',
  }
  const tables = state.ruleset.tables.map(table => {
    const services = table.chains.get('services')
    if (services === undefined) throw new Error('no chain services')
    const chains = new Map(table.chains).set('services', { ...services, rules: [again, ...services.rules] })
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
