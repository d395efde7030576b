import { afterEach, beforeAll, expect, test } from 'vitest'
import { DEFAULT_NFTABLES_OPTIONS } from '../../src/modes/nftables/settings.ts'
import { openIptablesPlane } from '../support/iptables-plane.ts'
import { freshNetns } from '../support/lab/netns.ts'
import {
  type Computed,
  change,
  commitAll,
  computeIn,
  IPTABLES,
  NFTABLES,
  openPlane,
} from '../support/pipeline.ts'
import { expectLoadable, nft, nftSavers, XT_SAVERS } from '../support/saved-ruleset.ts'
import { LOCAL_IPS, loadScenarios } from '../support/scenario.ts'

/* packets-saved.test.ts loads what is saved of every scenario; here are the rules of --log-rejects. */

const LOGGING = { logRejects: 7 }

beforeAll(freshNetns)
afterEach(() => {
  nft(['flush', 'ruleset'])
})

/** What each scenario ends with, where it has a chain that no earlier one has. */
function endsWithNewChains() {
  const seen = new Set<string>()
  return loadScenarios().flatMap(({ name, config, steps }) => {
    let computed: Computed = computeIn(NFTABLES, { ...config, ...LOGGING }, LOCAL_IPS)
    for (const step of steps) computed = change(computed, step)
    const chains = computed.state.ruleset.tables.flatMap(table => [...table.chains.keys()])
    const isNew = chains.some(chain => !seen.has(chain))
    for (const chain of chains) seen.add(chain)
    return isNew ? [{ name, config, steps, computed }] : []
  })
}

test('rules that log load from what nft and kprobe print', async () => {
  const ends = endsWithNewChains()
  expect(ends.length).toBeGreaterThan(5)
  const { client, plane } = openPlane(LOGGING)
  const savers = nftSavers(client, DEFAULT_NFTABLES_OPTIONS.tableName)
  for (const { name, computed } of ends) {
    const held = await commitAll(plane, (await plane.observe()).state, computed.state)
    expect(nft(['list', 'ruleset'])).toContain('log prefix "kprobe no-local-endpoints" group 7')
    await expectLoadable(savers, plane, held, name)
  }
  await client.close()
})

test('chains of iptables mode that log load from what iptables-nft-save prints', async () => {
  for (const { name, config, steps } of endsWithNewChains()) {
    nft(['flush', 'ruleset'])
    const { client, plane } = openIptablesPlane({ ...config, ...LOGGING })
    let computed = computeIn(IPTABLES, { ...config, ...LOGGING }, LOCAL_IPS)
    for (const step of steps) computed = change(computed, step)
    const held = await commitAll(plane, (await plane.observe()).state, computed.state)
    await expectLoadable(XT_SAVERS, plane, held, name)
    await client.close()
  }
})
