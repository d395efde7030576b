import { readdirSync } from 'node:fs'
import { beforeEach, expect, test } from 'vitest'
import { systemClock } from '../../src/base/clock.ts'
import { freshNetns } from '../support/lab/netns.ts'
import { Rig } from '../support/rig.ts'
import { differences, frontendNames, listRuleset, openNetfilter } from './kernel.ts'
import { service } from './objects.ts'

const SERVICES = 10_000
const OFFERS = 20
const TIMEOUT_MS = 60_000

beforeEach(() => {
  freshNetns()
})

test('F110: 10,000 Services come in a burst and go in another: few commits, and nothing is left', async () => {
  const rig = new Rig({ transport: openNetfilter(), clock: systemClock })
  try {
    await rig.sync([], TIMEOUT_MS)
    const before = filledSets()
    const descriptors = openDescriptors()
    const all = Array.from({ length: SERVICES }, (_, number) => service(number))
    for (let offer = 1; offer <= OFFERS; offer++) rig.offer(all.slice(0, (offer * SERVICES) / OFFERS).flat())
    await rig.synced(TIMEOUT_MS)
    expect(await differences(all.flat())).toEqual([])
    const made = rig.of('committed').length
    // What came while a pass was under way is one more pass, not one an offer.
    expect(made).toBeLessThan(OFFERS)
    await rig.sync([], TIMEOUT_MS)
    expect(rig.of('committed').length - made).toBeLessThan(OFFERS)
    expect(rig.of('failed')).toEqual([])
    expect(filledSets().filter(name => name !== 'dispatch')).toEqual(
      before.filter(name => name !== 'dispatch'),
    )
    expect(frontendNames().size).toBe(0)
    expect(await differences([])).toEqual([])
    expect(openDescriptors()).toBe(descriptors)
  } finally {
    await rig.close()
  }
})

/** Sets and maps that have something in them. */
function filledSets(): readonly string[] {
  const sets = listRuleset().match(/\t(set|map) [^{]*{[^{}]*elements = {/g) ?? []
  return sets.map(text => text.trim().split(' ')[1] ?? '')
}

function openDescriptors(): number {
  return readdirSync('/proc/self/fd').length
}
