import { describe, expect, it } from 'vitest'
import { change, computeIn, IPTABLES, NFTABLES, type PipelineConfig } from '../../support/pipeline.ts'
import { proofOf } from '../../support/proof.ts'
import { firstObjects, stepOf } from '../../support/proof-contested.ts'
import { PROVING, tablesOfIptables } from '../../support/proof-iptables.ts'
import { IS_QUICK, runs } from '../../support/runs.ts'
import { LOCAL_IPS } from '../../support/scenario.ts'
import { generator } from '../../support/walk.ts'

/** `PROOF_SEED=N` takes the same Services again, `PROOF_CHANGES=N` more changes of them. */
const SEED = Number(process.env.PROOF_SEED ?? 17)
const CHANGES = Number(process.env.PROOF_CHANGES ?? Math.max(20, runs(80, 1 / 4)))

const ALL: readonly PipelineConfig[] = [
  {},
  { nodePortAddresses: ['192.168.0.0/24', 'fd00:192:168::/64', '127.0.0.0/8'], masqueradeAll: true },
  { nodePortAddresses: ['0.0.0.0/0'], masqueradeAll: true },
]
const CONFIGS = IS_QUICK ? ALL.slice(0, 1) : ALL

describe.each(CONFIGS)('Services that contend for addresses, node ports and endpoints, with %j', config => {
  const title = `are treated as Kubernetes specifies (PROOF_SEED=${SEED})`

  it(`in nftables mode ${title}`, () => {
    const random = generator(SEED)
    let now = change(computeIn(NFTABLES, config, LOCAL_IPS), { objects: firstObjects(random) })
    for (let count = 0; count < CHANGES; count++) {
      const { differences } = proofOf(config, now.resolved.snapshot, now.state.ruleset.tables)
      expect(differences, `change ${count}`).toEqual([])
      now = change(now, stepOf(random))
    }
  })

  it(`in iptables mode ${title}`, () => {
    const random = generator(SEED)
    let now = change(computeIn(IPTABLES, config, LOCAL_IPS), { objects: firstObjects(random) })
    for (let count = 0; count < CHANGES / 2; count++) {
      const { differences } = proofOf(config, now.resolved.snapshot, tablesOfIptables(now.state), PROVING)
      expect(differences, `change ${count}`).toEqual([])
      now = change(now, stepOf(random))
    }
  })
})
