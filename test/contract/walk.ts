import { expect } from 'vitest'
import { systemClock } from '../../src/base/clock.ts'
import { createNftClient } from '../../src/kernel/nft/client.ts'
import { diffRulesets } from '../../src/kernel/nft/diff.ts'
import type { Ruleset } from '../../src/kernel/nft/state.ts'
import type { Transport } from '../../src/netlink/transport.ts'
import { LATE_SETS } from '../support/fake-kernel/random-rulesets.ts'
import { canonicalText } from '../support/fake-kernel/ruleset-model.ts'

const TABLES = [
  { family: 'ip', name: 'kube-proxy' },
  { family: 'ip6', name: 'kube-proxy' },
] as const
/** A chain in use is emptied, then deleted; one that an element leads to waits for that first. */
const ROUNDS_MAX = 4

/** To each goal from what was read back, as healing does, until nothing is left to do. */
export async function walk(transport: Transport, goals: readonly Ruleset[]): Promise<void> {
  const client = createNftClient({ transport, clock: systemClock })
  for (const goal of goals) {
    for (let round = 0; round < ROUNDS_MAX; round++) {
      const { ruleset, generation } = await client.list(TABLES)
      const { transaction } = diffRulesets(ruleset, goal, { lateSets: LATE_SETS })
      if (transaction.length === 0) break
      const result = await client.commit(transaction, { generation })
      expect(result.failures.map(failure => failure.error.message)).toEqual([])
      expect(result.outcome).toBe('committed')
    }
    expect(canonicalText((await client.list(TABLES)).ruleset)).toBe(canonicalText(goal))
  }
}
