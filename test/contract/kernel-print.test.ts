import { execFileSync } from 'node:child_process'
import { expect, test } from 'vitest'
import { systemClock } from '../../src/base/clock.ts'
import { createNftClient } from '../../src/kernel/nft/client.ts'
import { printRuleset } from '../../src/kernel/nft/print.ts'
import { openNetlink } from '../../src/netlink/native.ts'
import { freshNetns } from '../support/lab/netns.ts'
import { NOTHING, plan, WHOLE } from '../support/whole-ruleset.ts'

test('our listing says what `nft list ruleset` says, but for the order of elements and the counts', async () => {
  await (await committed()).close()
  const theirs = execFileSync('nft', ['list', 'ruleset'], { encoding: 'utf8' })
  expect(normalized([...printRuleset(WHOLE)].join('\n'))).toEqual(normalized(theirs))
})

test('what our words lack for a foreign rule is kept, so that a comparison sees it', async () => {
  const client = await committed()
  const rule = 'quota over 10 mbytes notrack accept'.split(' ')
  execFileSync('nft', ['add', 'rule', 'ip', 'kube-proxy', 'end', ...rule])
  const { ruleset } = await client.list([{ family: 'ip', name: 'kube-proxy' }])
  const read = ruleset.tables[0]?.chains.get('end')?.rules.at(-1)?.expressions
  expect(read).toMatchObject([{ kind: 'unknown', name: 'quota' }, { kind: 'unknown' }, { kind: 'verdict' }])
  await client.close()
})

async function committed() {
  freshNetns()
  const client = createNftClient({ transport: openNetlink({ protocol: 12 }), clock: systemClock })
  expect(await client.commit(plan(NOTHING, WHOLE))).toMatchObject({ outcome: 'committed' })
  return client
}

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
