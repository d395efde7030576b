import { afterEach, beforeEach, describe, expect, it } from 'vitest'
import { systemClock } from '../../src/base/clock.ts'
import { ApiReach } from '../../src/daemon/api-reach.ts'
import { NETLINK_NETFILTER } from '../../src/netlink/constants.ts'
import { openNetlink } from '../../src/netlink/native.ts'
import { listRuleset } from '../faults/kernel.ts'
import { freshNetns } from '../support/lab/netns.ts'

let reach: ApiReach
let isCaptured: boolean
let logged: string[]

beforeEach(() => {
  freshNetns()
  isCaptured = true
  logged = []
  const note = (_: object, text: string) => void logged.push(text)
  reach = new ApiReach({
    clock: systemClock,
    log: { debug: note, warn: note },
    random: Math.random,
    openTransport: () => openNetlink({ protocol: NETLINK_NETFILTER }),
    free: [],
    connects: () => Promise.resolve(!isCaptured),
    changed: () => undefined,
  })
  reach.reaching(['192.0.2.1'], 6443)
})

afterEach(() => reach.close())

function words(word: string): number {
  return listRuleset().split(word).length - 1
}

async function connectedPastRules(times = 1): Promise<void> {
  await (await reach.dialling()).failed()
  for (let time = 0; time < times; time++) {
    const attempt = await reach.dialling()
    await attempt.connected('192.0.2.1', 6443)
  }
}

describe('F131: the way past rules that capture the API server', () => {
  it('F131: is there for every second attempt, translated and then untracked, and ends with it', async () => {
    const seen: [boolean, number, number][] = []
    for (let time = 0; time < 5; time++) {
      const { localPort, failed } = await reach.dialling()
      seen.push([localPort !== undefined, words('dnat'), words('notrack')])
      await failed()
      expect(words('kprobe-api')).toBe(0)
    }
    const none = [false, 0, 0]
    expect(seen).toEqual([none, [true, 1, 2], none, [true, 0, 3], none])
  })

  it('F131: stays with the connections that were made by it, sixteen at most', async () => {
    await connectedPastRules(20)
    expect(words('kprobe-api')).toBe(16)
    await reach.close()
    expect(words('kprobe-api')).toBe(0)
  })

  it('F131: goes with the first sync, which tells of a capture that was seen', async () => {
    await connectedPastRules()
    isCaptured = false
    await reach.synced({ isStale: false })
    expect(words('kprobe-api')).toBe(0)
    expect(logged.at(-1)).toMatch('reached the API server by bypassing Service rules')
    await connectedPastRules(3)
    expect(words('kprobe-api')).toBe(0)
  })

  it('F131: goes with the first sync without a word where none was seen', async () => {
    isCaptured = false
    await connectedPastRules()
    await reach.synced({ isStale: false })
    expect(words('kprobe-api')).toBe(0)
    expect(logged.filter(text => text.includes('reached'))).toEqual([])
  })

  it('F131: stays where rules of others go on capturing it', async () => {
    await connectedPastRules()
    await reach.synced({ isStale: false })
    expect(words('kprobe-api')).toBe(1)
    expect(logged.at(-1)).toMatch('still capture it')
  })
})
