import { expect, it } from 'vitest'
import { PersistentMap } from '../../../src/base/collections.ts'
import { NF_DROP } from '../../../src/kernel/nft/constants.ts'
import type { AnyTable, Chain, ElementGroup } from '../../../src/kernel/nft/state.ts'
import { meaningOf } from '../../../src/proof/meanings.ts'
import { prove } from '../../../src/proof/prove.ts'
import { computeIn, IPTABLES } from '../../support/pipeline.ts'
import { meaningConfigOf } from '../../support/proof.ts'
import { PROVING } from '../../support/proof-iptables.ts'
import { LOCAL_IPS } from '../../support/scenario.ts'

it('rests while it compiles a long chain that Services fill', () => {
  const { promises, owns } = PROVING
  const { snapshot } = computeIn(IPTABLES, {}, LOCAL_IPS).resolved
  const meanings = meaningOf(snapshot, { ...meaningConfigOf({}), promises })
  const stepsWith = (rules: number): number => {
    const expressions = (at: number) => [
      { kind: 'payload', base: 1, offset: 16, length: 4, dreg: 0 },
      { kind: 'cmp', op: 'eq', sreg: 0, data: `\x0a\x01${String.fromCharCode(at >> 8, at & 0xff)}` },
      { kind: 'verdict', verdict: { code: NF_DROP, chain: undefined } },
    ]
    const chain = {
      name: 'KUBE-SERVICES',
      hook: undefined,
      rules: Array.from({ length: rules }, (_, at) => ({ expressions: expressions(at), comment: '' })),
    } as Chain
    const table: AnyTable = {
      ...{ family: 'ip', name: 'nat', flags: 0, comment: undefined, sets: new Map() },
      chains: new Map([[chain.name, chain]]),
      elements: PersistentMap.empty<ElementGroup>(),
    }
    let steps = 0
    for (const _ of prove({ meanings, tables: [table], ownName: '', owns })) steps++
    return steps
  }
  expect(stepsWith(8_000)).toBeGreaterThan(stepsWith(0) + 8_000 / 256)
})
