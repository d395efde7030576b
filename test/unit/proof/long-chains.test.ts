import { expect, it } from 'vitest'
import { finish, type Steps } from '../../../src/base/clock.ts'
import { PersistentMap } from '../../../src/base/collections.ts'
import { NF_DROP } from '../../../src/kernel/nft/constants.ts'
import type { AnyTable, Chain, ElementGroup } from '../../../src/kernel/nft/state.ts'
import { type ProofState, RunningProof } from '../../../src/proof/changes.ts'
import { computeIn, IPTABLES } from '../../support/pipeline.ts'
import { meaningConfigOf } from '../../support/proof.ts'
import { PROVING } from '../../support/proof-iptables.ts'
import { LOCAL_IPS } from '../../support/scenario.ts'

it('rests while it compiles and compares a long chain that Services fill', () => {
  const { promises, owns } = PROVING
  const ofIptables = { config: { ...meaningConfigOf({}), promises }, ownName: '', owns }
  const { resolved } = computeIn(IPTABLES, {}, LOCAL_IPS)
  const stateOf = (count: number): ProofState => {
    const rules = Array.from({ length: count }, (_, at) => ({
      expressions: [
        { kind: 'payload', base: 1, offset: 16, length: 4, dreg: 0 },
        { kind: 'cmp', op: 'eq', sreg: 0, data: `\x0a\x01${String.fromCharCode(at >> 8, at & 0xff)}` },
        { kind: 'verdict', verdict: { code: NF_DROP, chain: undefined } },
      ],
      comment: '',
    })) as Chain['rules']
    const chain = { name: 'KUBE-SERVICES', hook: undefined, rules }
    const table: AnyTable = {
      ...{ family: 'ip', name: 'nat', flags: 0, comment: undefined, sets: new Map() },
      chains: new Map([[chain.name, chain]]),
      elements: PersistentMap.empty<ElementGroup>(),
    }
    return { snapshot: resolved.snapshot, tables: [table] }
  }
  const stepsIn = (steps: Steps<unknown>): number => {
    let count = 0
    for (const _ of steps) count++
    return count
  }
  const [COUNT, RULES_A_STEP] = [8_000, 256]
  const running = new RunningProof(ofIptables)
  const few = stepsIn(new RunningProof(ofIptables).whole(stateOf(0)))
  expect(stepsIn(running.whole(stateOf(COUNT)))).toBeGreaterThan(few + COUNT / RULES_A_STEP)
  const read = stateOf(COUNT)
  expect(stepsIn(running.changes(read))).toBeGreaterThan((2 * COUNT) / RULES_A_STEP)
  // What is not read again is not compared again.
  const [table] = read.tables
  const chain = table?.chains.get('KUBE-SERVICES')
  if (table === undefined || chain === undefined) throw new Error('no chain')
  const shorter = { ...chain, rules: chain.rules.slice(1) }
  const tables = [{ ...table, chains: new Map([[chain.name, shorter]]) }]
  expect(finish(running.changes({ ...read, tables }))).toMatchObject({ kind: 'changes' })
})
