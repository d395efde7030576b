import { execFileSync } from 'node:child_process'
import { expect, test } from 'vitest'
import { finish, systemClock } from '../../src/base/clock.ts'
import { createNftClient } from '../../src/kernel/nft/client.ts'
import { diffRulesets } from '../../src/kernel/nft/diff.ts'
import { printRuleset } from '../../src/kernel/nft/print.ts'
import { openNetlink } from '../../src/netlink/native.ts'
import { freshNetns } from '../support/lab/netns.ts'
import { NOTHING, WHOLE } from './whole-ruleset.ts'

test('our listing says what `nft list ruleset` says, but for the order of elements and the counts', async () => {
  freshNetns()
  const client = createNftClient({ transport: openNetlink({ protocol: 12 }), clock: systemClock })
  const { transaction } = finish(diffRulesets(NOTHING, WHOLE, { lateSets: new Set() }))
  expect(await client.commit(transaction)).toMatchObject({ outcome: 'committed' })
  await client.close()
  const theirs = execFileSync('nft', ['list', 'ruleset'], { encoding: 'utf8' })
  expect(normalized([...printRuleset(WHOLE)].join('\n'))).toEqual(normalized(theirs))
})

/** Elements one to a line and sorted, without counts, and without blank lines. */
function normalized(listing: string): string[] {
  const plain = listing.replace(/ packets \d+ bytes \d+/g, '')
  const sorted = plain.replace(/elements = \{([^}]*)\}/g, (_all, elements: string) => {
    return `elements\n${elements
      .split(',')
      .map(element => element.trim())
      .sort()
      .join('\n')}`
  })
  return sorted
    .split('\n')
    .map(line => line.trim())
    .filter(line => line !== '')
}
