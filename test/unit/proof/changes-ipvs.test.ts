import { describe, expect, it } from 'vitest'
import { finish } from '../../../src/base/clock.ts'
import { outsideChange } from '../../../src/modes/ipvs/trace.ts'
import { RunningProof } from '../../../src/proof/changes.ts'
import { change, computeIn, IPVS, IPVS_CHAINS, type PipelineConfig } from '../../support/pipeline.ts'
import { meaningConfigOf } from '../../support/proof.ts'
import { NODE, SERVICES, serviceOf, sliceOf, stepOf, units, wrongOf } from '../../support/proof-changes.ts'
import { heldOf, mutateOutside, OWN_IPVS, provingIpvs, tablesOfIpvs } from '../../support/proof-ipvs.ts'
import { IS_QUICK, runs } from '../../support/runs.ts'
import { LOCAL_IPS } from '../../support/scenario.ts'
import { generator } from '../../support/walk.ts'

/** `PROOF_SEED=N` takes the same changes again, `PROOF_CHANGES=N` more of them. */
const SEED = Number(process.env.PROOF_SEED ?? 17)
const CHANGES = Number(process.env.PROOF_CHANGES ?? Math.max(40, runs(160, 1 / 4)))

/** With the share of changes that need no whole proof, at least. */
const CONFIGS: readonly (readonly [mode: string, config: PipelineConfig, share: number])[] = [
  ['nftables', {}, 1 / 3],
  ['iptables', {}, 1 / 3],
  ['nftables', { nodePortAddresses: ['0.0.0.0/0'], masqueradeAll: true }, 1 / 5],
]

describe.each(IS_QUICK ? CONFIGS.slice(0, 1) : CONFIGS)('with rules of %s and %j', (rules, config, share) => {
  it(`finds after each change what a whole proof finds (PROOF_SEED=${SEED})`, () => {
    const random = generator(SEED)
    const mode = rules === 'iptables' ? IPVS_CHAINS : IPVS
    const { promises, owns } = provingIpvs(rules)
    const options = { config: { ...meaningConfigOf(config), promises }, ownName: OWN_IPVS, owns }
    const objects = Array.from({ length: SERVICES }, (_, at) => [
      serviceOf(random, at + 1),
      sliceOf(random, at + 1),
    ])
    let computed = change(computeIn(mode, config, LOCAL_IPS), { objects: [NODE, ...objects.flat()] })
    let held = computed.state
    const stateOf = () => ({ snapshot: computed.resolved.snapshot, tables: tablesOfIpvs(held) })
    const running = new RunningProof(options)
    finish(running.whole({ ...stateOf(), ipvs: heldOf(held) }))
    const counts = { changes: 0, whole: 0, wrong: 0 }
    const whys = new Set<string>()
    for (let number = 0; number < CHANGES; number++) {
      // Damage goes on for a while: with the next change the objects are repaired, or damaged once more.
      const [isChange, isDamage] = [random(4) > 0, random(3) === 0]
      const before = held
      if (isChange) {
        computed = change(computed, stepOf(random))
        held = computed.state
      }
      const mutation = isDamage ? mutateOutside(held, random) : undefined
      held = mutation?.[1] ?? held
      const state = stateOf()
      const found = finish(running.changes({ ...state, ipvs: outsideChange(before, held) }))
      const whole = { ...state, ipvs: heldOf(held) }
      const oracle = wrongOf(options, whole)
      counts[found.kind]++
      if (oracle.wrong > 0) counts.wrong++
      const what = `change ${number}: ${mutation?.[0] ?? 'no damage'}`
      if (found.kind === 'changes') {
        expect(units(running.wrong), what).toEqual(oracle.units)
        expect(found.proof.wrong > 0, what).toBe(oracle.wrong > 0)
      } else {
        whys.add(found.why)
        finish(running.whole(whole))
      }
    }
    if (process.env.PROOF_WHYS === '1')
      process.stderr.write(`${JSON.stringify(counts)}\n${[...whys].join('\n')}\n`)
    expect(counts.changes, [...whys].join('\n')).toBeGreaterThan(CHANGES * share)
    expect(counts.wrong).toBeGreaterThan(CHANGES / 30)
  })
})
