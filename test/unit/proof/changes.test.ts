import { describe, expect, it } from 'vitest'
import { finish } from '../../../src/base/clock.ts'
import { PersistentMap } from '../../../src/base/collections.ts'
import { NF_DROP, NF_INET_PRE_ROUTING, NFT_JUMP } from '../../../src/kernel/nft/constants.ts'
import type { AnyTable, Element, ElementGroup, Table } from '../../../src/kernel/nft/state.ts'
import { compileRule } from '../../../src/kernel/xt/compile.ts'
import { appliedScope } from '../../../src/kernel/xt/scope.ts'
import { diffStates } from '../../../src/modes/iptables/diff.ts'
import type { IptablesState } from '../../../src/modes/iptables/state.ts'
import { type ChangesProof, type ProofState, RunningProof } from '../../../src/proof/changes.ts'
import { change, computeIn, IPTABLES, NFTABLES, type PipelineConfig } from '../../support/pipeline.ts'
import { meaningConfigOf } from '../../support/proof.ts'
import { NODE, SERVICES, serviceOf, sliceOf, stepOf, units, wrongOf } from '../../support/proof-changes.ts'
import { heldChains, PROVING, tablesOfChains, tablesOfIptables } from '../../support/proof-iptables.ts'
import { mutate } from '../../support/proof-mutations.ts'
import { mutateChains } from '../../support/proof-xt-mutations.ts'
import { IS_QUICK, runs } from '../../support/runs.ts'
import { LOCAL_IPS } from '../../support/scenario.ts'
import { generator } from '../../support/walk.ts'

/** `PROOF_SEED=N` takes the same changes again, `PROOF_CHANGES=N` more of them. */
const SEED = Number(process.env.PROOF_SEED ?? 17)
const CHANGES = Number(process.env.PROOF_CHANGES ?? Math.max(40, runs(160, 1 / 4)))

/** As a dump has it: in groups of sets, and nothing is the object that it was. */
function asRead(tables: readonly AnyTable[]): readonly AnyTable[] {
  return tables.map(table => {
    const groups = new Map<string, Element[]>()
    for (const element of table.elements.values().flat())
      groups.set(element.set, [...(groups.get(element.set) ?? []), { ...element }])
    return {
      ...table,
      chains: new Map([...table.chains].map(([name, chain]) => [name, structuredClone(chain)])),
      sets: new Map([...table.sets].map(([name, set]) => [name, { ...set }])),
      elements: PersistentMap.from<ElementGroup>(groups),
    }
  })
}

/** With the share of changes that need no whole proof, at least. */
const CONFIGS: readonly (readonly [PipelineConfig, number])[] = [
  [{}, 1 / 2],
  [{ nodePortAddresses: ['192.168.0.0/24', 'fd00:192:168::/64', '127.0.0.0/8'], masqueradeAll: true }, 1 / 3],
  [{ nodePortAddresses: ['0.0.0.0/0'] }, 1 / 10],
]

describe.each(IS_QUICK ? CONFIGS.slice(0, 1) : CONFIGS)('with %j', (config, share) => {
  it(`finds after each change what a whole proof finds (PROOF_SEED=${SEED})`, () => {
    const random = generator(SEED)
    const options = { config: meaningConfigOf(config), ownName: 'kube-proxy' }
    const objects = Array.from({ length: SERVICES }, (_, at) => [
      serviceOf(random, at + 1),
      sliceOf(random, at + 1),
    ])
    let computed = change(computeIn(NFTABLES, config, LOCAL_IPS), { objects: [NODE, ...objects.flat()] })
    const stateOf = (tables: readonly AnyTable[]): ProofState => ({
      snapshot: computed.resolved.snapshot,
      tables: random(3) === 0 ? asRead(tables) : tables,
    })
    const running = new RunningProof(options)
    finish(running.whole(stateOf(computed.state.ruleset.tables)))
    let damaged: readonly Table[] | undefined
    const counts = { changes: 0, whole: 0, wrong: 0 }
    const whys = new Set<string>()
    for (let number = 0; number < CHANGES; number++) {
      // Damage goes on for a while: with the next change the rules are repaired, or damaged once more.
      const [isChange, isDamage] = [random(4) > 0, random(3) === 0]
      if (isChange) computed = change(computed, stepOf(random))
      if (isChange) damaged = undefined
      const tables = damaged ?? computed.state.ruleset.tables
      const mutation = isDamage ? mutate(tables, random) : undefined
      damaged = mutation?.tables ?? damaged
      const state = stateOf(mutation?.tables ?? tables)
      const found = finish(running.changes(state))
      const oracle = wrongOf(options, state)
      counts[found.kind]++
      if (oracle.wrong > 0) counts.wrong++
      const what = `change ${number}: ${mutation?.what ?? 'no damage'}`
      if (found.kind === 'changes') {
        expect(units(running.wrong), what).toEqual(oracle.units)
        expect(found.proof.wrong > 0, what).toBe(oracle.wrong > 0)
      } else {
        whys.add(found.why)
        finish(running.whole(state))
      }
      if (random(2) === 0) expect(finish(running.share(asRead(state.tables))), what).toBe(true)
    }
    expect(counts.changes, [...whys].join('\n')).toBeGreaterThan(CHANGES * share)
    expect(counts.wrong).toBeGreaterThan(CHANGES / 30)
    if (process.env.PROOF_WHYS === '1')
      process.stderr.write(`${JSON.stringify(counts)}\n${[...whys].join('\n')}\n`)
  })
})

const IPTABLES_CONFIGS: readonly (readonly [PipelineConfig, number])[] = [
  [{}, 1 / 3],
  [{ nodePortAddresses: ['0.0.0.0/0'], masqueradeAll: true }, 1 / 3],
]

describe.each(IS_QUICK ? IPTABLES_CONFIGS.slice(0, 1) : IPTABLES_CONFIGS)(
  'in iptables mode, with %j',
  (config, share) => {
    /** What the kernel holds after what was committed, and what a start would write. */
    const advanced = (tables: readonly AnyTable[], from: IptablesState, to: IptablesState) => {
      const { operations } = finish(diffStates(from, to, { compile: compileRule }))
      const after = finish(appliedScope(tables, operations))
      expect(after && contentsOf(after)).toEqual(contentsOf(tablesOfIptables(to)))
      return after ?? tables
    }

    it(`finds after each change what a whole proof finds (PROOF_SEED=${SEED})`, () => {
      const random = generator(SEED)
      const { promises, owns } = PROVING
      const options = { config: { ...meaningConfigOf(config), promises }, ownName: '', owns }
      const objects = Array.from({ length: SERVICES }, (_, at) => [
        serviceOf(random, at + 1),
        sliceOf(random, at + 1),
      ])
      let computed = change(computeIn(IPTABLES, config, LOCAL_IPS), { objects: [NODE, ...objects.flat()] })
      let tables: readonly AnyTable[] = tablesOfIptables(computed.state)
      const running = new RunningProof(options)
      finish(running.whole({ snapshot: computed.resolved.snapshot, tables }))
      const counts = { changes: 0, whole: 0, wrong: 0 }
      const whys = new Set<string>()
      for (let number = 0; number < CHANGES / 2; number++) {
        const before = computed.state
        computed = change(computed, stepOf(random))
        tables = advanced(tables, before, computed.state)
        const chains = random(2) === 0 ? mutateChains(heldChains(computed.state), random) : undefined
        const state = {
          snapshot: computed.resolved.snapshot,
          tables: chains === undefined ? tables : tablesOfChains(chains.chains),
        }
        const found = finish(running.changes(state))
        const oracle = wrongOf(options, state)
        counts[found.kind]++
        if (oracle.wrong > 0) counts.wrong++
        const what = `change ${number}: ${chains?.what ?? 'no damage'}`
        if (chains === undefined) expect(oracle.units, what).toEqual([])
        if (found.kind === 'changes') expect(units(running.wrong), what).toEqual(oracle.units)
        else {
          whys.add(found.why)
          finish(running.whole(state))
        }
      }
      expect(counts.changes, [...whys].join('\n')).toBeGreaterThan((CHANGES / 2) * share)
      expect(counts.wrong).toBeGreaterThan(0)
      if (process.env.PROOF_WHYS === '1')
        process.stderr.write(`${JSON.stringify(counts)}\n${[...whys].join('\n')}\n`)
    })
  },
)

/** Chains by name; the order of the rules of Services has no meaning. */
function contentsOf(tables: readonly AnyTable[]): readonly string[] {
  return tables
    .flatMap(({ family, name, chains }) =>
      [...chains.values()].map(
        chain =>
          `${family} ${name} ${chain.name} ${chain.rules.map(({ expressions }) => JSON.stringify(expressions)).sort()}`,
      ),
    )
    .sort()
}

const MUTATIONS = Array.from({ length: 40 }, (_, seed) => seed)

describe('what concerns all classes', () => {
  const options = { config: meaningConfigOf({}), ownName: 'kube-proxy' }
  const random = generator(1)
  const first = change(computeIn(NFTABLES, {}, LOCAL_IPS), {
    objects: [NODE, ...[1, 2].flatMap(number => [serviceOf(random, number), sliceOf(random, number)])],
  })
  const { snapshot } = first.resolved
  const { tables } = first.state.ruleset
  const proofAfter = (state: ProofState): ChangesProof => {
    const running = new RunningProof(options)
    finish(running.whole({ snapshot, tables }))
    return finish(running.changes(state))
  }
  const withChain = (rules: Table['chains']) => tables.map(table => ({ ...table, chains: rules }))

  it('is nothing where nothing changed', () => {
    expect(proofAfter({ snapshot, tables: asRead(tables) })).toMatchObject({
      kind: 'changes',
      proof: { classes: 0 },
    })
  })

  it('is a table of another program', () => {
    const [own] = tables
    if (own === undefined) throw new Error('no table')
    const drop = {
      expressions: [{ kind: 'verdict', verdict: { code: NF_DROP, chain: undefined } }],
      comment: '',
    } as const
    const hook = { type: 'filter', hooknum: NF_INET_PRE_ROUTING, priority: -300 } as const
    const other: AnyTable = {
      ...own,
      name: 'other',
      chains: new Map([['first', { name: 'first', hook, rules: [drop] }]]),
      sets: new Map(),
      elements: PersistentMap.empty(),
    }
    expect(proofAfter({ snapshot, tables: [...tables, other] })).toEqual({
      kind: 'whole',
      why: 'table ip other is new',
    })
  })

  it('is a chain of ours that changed', () => {
    const chains = new Map(tables[0]?.chains)
    const services = chains.get('services')
    if (services !== undefined) chains.set('services', { ...services, rules: services.rules.slice(1) })
    expect(proofAfter({ snapshot, tables: withChain(chains) })).toMatchObject({
      kind: 'whole',
      why: expect.stringContaining('chain ip kube-proxy'),
    })
  })

  it('is a chain of ours that leads to itself, which is a difference', () => {
    const chains = new Map(tables[0]?.chains)
    const services = chains.get('services')
    if (services === undefined) throw new Error('no chain services')
    const again = {
      expressions: [{ kind: 'verdict', verdict: { code: NFT_JUMP, chain: 'services' } }],
      comment: '',
    } as const
    chains.set('services', { ...services, rules: [again, ...services.rules] })
    const running = new RunningProof(options)
    const { differences, wrong } = finish(running.whole({ snapshot, tables: withChain(chains) }))
    expect(wrong).toBeGreaterThan(0)
    expect(differences[0]?.kernel).toBe('unknown: chains go round in circles at services')
  })

  it('is the Node', () => {
    const moved = change(first, {
      objects: [{ ...NODE, status: { addresses: [{ type: 'InternalIP', address: '192.168.0.9' }] } }],
    })
    expect(proofAfter({ snapshot: moved.resolved.snapshot, tables: moved.state.ruleset.tables })).toEqual({
      kind: 'whole',
      why: 'the Node changed',
    })
  })

  it('is nothing behind versions that hold the same as what was read', () => {
    const running = new RunningProof(options)
    finish(running.whole({ snapshot, tables: asRead(tables) }))
    expect(finish(running.share(tables))).toBe(true)
    const added = change(first, { objects: [serviceOf(random, 3), sliceOf(random, 3)] })
    const state = { snapshot: added.resolved.snapshot, tables: added.state.ruleset.tables }
    const found = finish(running.changes(state))
    expect(found).toMatchObject({ kind: 'changes', proof: { wrong: 0 } })
  })

  it('rests while it follows many Services, and large tables that were read again', () => {
    const stepsOf = (state: ProofState) => {
      const running = new RunningProof(options)
      finish(running.whole({ snapshot, tables }))
      let count = 0
      for (const _ of running.changes(state)) count++
      return count
    }
    const many = Array.from({ length: 400 }, (_, at) => ({
      apiVersion: 'v1',
      kind: 'Service',
      metadata: { namespace: 'ns', name: `many${at}` },
      spec: { type: 'ExternalName', externalName: 'example.com', ports: [{ port: 80 }] },
    }))
    const added = change(first, { objects: many })
    // These Services mean nothing: no class is followed.
    expect(stepsOf({ snapshot: added.resolved.snapshot, tables })).toBeGreaterThan(400 / 64)
    const set = [...(tables[0]?.sets.values() ?? [])][0]
    const element = (at: number): Element => ({ set: 'large', key: `${at}`, data: undefined, comment: '' })
    const other = (): AnyTable => ({
      family: 'ip',
      name: 'other',
      flags: 0,
      comment: undefined,
      chains: new Map(
        Array.from({ length: 400 }, (_, at) => [`c${at}`, { name: `c${at}`, hook: undefined, rules: [] }]),
      ),
      sets: new Map(set === undefined ? [] : [['large', { ...set, name: 'large' }]]),
      elements: PersistentMap.from([['all', Array.from({ length: 20_000 }, (_, at) => element(at))]]),
    })
    const running = new RunningProof(options)
    finish(running.whole({ snapshot, tables: [...tables, other()] }))
    let count = 0
    for (const _ of running.changes({ snapshot, tables: [...tables, other()] })) count++
    expect(count).toBeGreaterThan(20_000 / 2_048 + 400 / 64)
  })

  it.each(MUTATIONS)('shares no tables that differ from what was read (seed %i)', seed => {
    const running = new RunningProof(options)
    finish(running.whole({ snapshot, tables }))
    const damaged = mutate(tables, generator(seed))
    // An entry that packets filled is no difference.
    if (damaged === undefined || damaged.what.includes('affinity')) return
    expect(finish(running.share(damaged.tables)), damaged.what).toBe(false)
    expect(finish(running.share(tables))).toBe(true)
  })

  it('is everything before the first whole proof', () => {
    expect(finish(new RunningProof(options).changes({ snapshot, tables }))).toMatchObject({ kind: 'whole' })
  })
})
