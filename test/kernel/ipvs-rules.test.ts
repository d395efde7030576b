import { execFileSync } from 'node:child_process'
import { afterEach, beforeEach, expect, it } from 'vitest'
import { systemClock } from '../../src/base/clock.ts'
import { createNftClient, type NftClient } from '../../src/kernel/nft/client.ts'
import { diffRulesets } from '../../src/kernel/nft/diff.ts'
import { describeOperation } from '../../src/kernel/nft/print.ts'
import { NETLINK_NETFILTER } from '../../src/netlink/constants.ts'
import { openNetlink } from '../../src/netlink/native.ts'
import { ipsetNames } from '../contract/ipsets.ts'
import { createSets } from '../support/create-ipsets.ts'
import { destroyIpsets } from '../support/destroy-ipsets.ts'
import { change, computeIn, IPVS, IPVS_CHAINS } from '../support/pipeline.ts'
import { LOCAL_IPS, loadScenarios } from '../support/scenario.ts'

const names = openNetlink({ protocol: NETLINK_NETFILTER })
let client: NftClient

beforeEach(() => {
  execFileSync('nft', ['flush', 'ruleset'])
  const transport = openNetlink({ protocol: NETLINK_NETFILTER })
  client = createNftClient({ transport, clock: systemClock, ipsets: ipsetNames(names) })
})

afterEach(async () => {
  await client.close()
  execFileSync('nft', ['flush', 'ruleset'])
  await destroyIpsets()
})

const NO_LATE_SETS = { lateSets: new Set<string>() }

it.each([
  ['all rules in them', IPVS],
  ['the rest in chains of iptables', IPVS_CHAINS],
])(
  'takes the tables of IPVS mode for every scenario, and gives them back as they were written: %s',
  async (_, mode) => {
    createSets(computeIn(mode, {}, LOCAL_IPS).state.sets)
    let held: (typeof IPVS)['empty']['ruleset'] = { tables: [] }
    for (const scenario of loadScenarios()) {
      let computed = computeIn(mode, scenario.config, LOCAL_IPS)
      for (const step of scenario.steps) {
        computed = change(computed, step)
        const { ruleset } = computed.state
        const { transaction } = diffRulesets(held, ruleset, NO_LATE_SETS)
        const result = await client.commit(transaction)
        expect(result, `${scenario.file}: ${step.title}`).toMatchObject({ outcome: 'committed' })
        held = ruleset
      }
      const listed = await client.list(held.tables)
      const left = diffRulesets(listed.ruleset, held, NO_LATE_SETS).transaction
      expect(
        left.map(operation => describeOperation(operation)),
        scenario.file,
      ).toEqual([])
    }
  },
)
