import { afterEach, beforeEach, expect, it } from 'vitest'
import { openNetlink } from '../../src/netlink/native.ts'
import type { Transport } from '../../src/netlink/transport.ts'
import { FaultyTransport, messagesIn, type TransportFaults } from '../support/faulty-transport.ts'
import { freshNetns } from '../support/lab/netns.ts'
import { eventually } from '../support/patience.ts'
import { Rig } from '../support/rig.ts'
import { differences, nft, openNetfilter } from './kernel.ts'
import { clusterIp, services } from './objects.ts'

const NETLINK_NETFILTER = 12
const rigs: Rig[] = []

beforeEach(() => freshNetns())

afterEach(async () => {
  await Promise.all(rigs.splice(0).map(rig => rig.close()))
})

function rigWith(faults: TransportFaults, openListener?: () => Transport): Rig {
  const transport = new FaultyTransport(openNetfilter(), faults)
  const rig = new Rig({ transport, ...(openListener === undefined ? {} : { openListener }) })
  rigs.push(rig)
  return rig
}

const DAMAGE = `delete element ip kube-proxy frontends { ${clusterIp(3)} . tcp . 80 }`

async function isWhole(): Promise<boolean> {
  return (await differences(services(10))).length === 0
}

/** So many elements of a foreign set, as lines of nft. */
function foreign(verb: 'add' | 'delete', from: number, count: number): string {
  const addresses = Array.from({ length: count }, (_, i) => `10.${(from + i) >> 8}.${(from + i) & 255}.1`)
  return `${verb} element ip other s { ${addresses.join()} }`
}

it('F67: a subscription that is overrun misses no damage', async () => {
  let overruns = 0
  const listen = () => {
    const ears = openNetlink({ protocol: NETLINK_NETFILTER, receiveBufferBytes: 16 * 1024 })
    const receive = ears.receive.bind(ears)
    ears.receive = into => {
      try {
        return receive(into)
      } catch (error) {
        overruns++
        throw error
      }
    }
    return ears
  }
  const rig = rigWith({}, listen)
  await rig.sync(services(10))
  nft('table ip other { set s { type ipv4_addr; size 65536; }; }')
  await subscribed()
  expect(rig.of('foreign-commit').some(({ damage }) => damage)).toBe(true)
  for (let round = 0; round < 12; round++) {
    const verb = round % 2 === 0 ? 'add' : 'delete'
    // The damage lies between what is heard first and what is heard last of one commit, or after an overrun.
    const parts = [foreign(verb, 0, 900), round % 3 === 0 ? '' : DAMAGE, foreign(verb, 900, 900)]
    nft(parts.join('\n'))
    if (round % 3 === 0) nft(DAMAGE)
    await eventually(isWhole)
  }
  expect(overruns).toBeGreaterThan(0)
  expect(rig.of('failed')).toEqual([])
})

it('F67: a flush of more tables than anyone counts is damage all the same', async () => {
  const rig = rigWith({}, openNetfilter)
  await rig.sync(services(10))
  await subscribed()
  // Tables are deleted in the order of their age: ours become the last ones.
  const others = Array.from({ length: 50 }, (_, i) => `table ip other${i} { chain c { counter; }; }`)
  nft(`${others.join('\n')}\ndelete table ip kube-proxy\ndelete table ip6 kube-proxy`)
  await eventually(isWhole)
  nft('flush ruleset')
  await eventually(isWhole)
})

const NFT_MSG_GETGEN = 0x0a10

/** A rig, and the type of each datagram that it sends. */
function sendingRig(): { readonly rig: Rig; readonly sent: number[] } {
  const sent: number[] = []
  const onSend = (datagram: Uint8Array) => {
    sent.push(messagesIn(datagram)[0]?.type ?? 0)
    return datagram
  }
  return { rig: rigWith({ onSend }, openNetfilter), sent }
}

/** Damage that recurs brings the subscription about. */
async function subscribed(): Promise<void> {
  for (let round = 0; round < 4; round++) {
    nft(DAMAGE)
    await eventually(isWhole)
  }
}

it('F68: commits of our own bring about no look, no pass and no commit', async () => {
  const { rig, sent } = sendingRig()
  await rig.sync(services(10))
  for (const count of [11, 2_000, 9, 12]) {
    await rig.sync(services(count))
    // An edit that shrinks lists takes two commits.
    await rig.wait(100)
    sent.length = 0
    await rig.wait(400)
    expect(sent.filter(type => type !== NFT_MSG_GETGEN)).toEqual([])
    expect(sent.length).toBeLessThanOrEqual(5)
  }
  expect(rig.of('foreign-commit')).toEqual([])
  expect(rig.of('repaired')).toEqual([])
})

it('F68: nor with a subscription open, nor while others commit to their own tables', async () => {
  const { rig, sent } = sendingRig()
  await rig.sync(services(10))
  await subscribed()
  await rig.wait(300)
  sent.length = 0
  for (let round = 0; round < 5; round++) {
    nft(`add table ip other${round}`)
    await rig.wait(120)
  }
  expect(sent.filter(type => type !== NFT_MSG_GETGEN)).toEqual([])
  const looks = rig.of('foreign-commit').length
  for (const count of [11, 12, 13]) await rig.sync(services(count))
  await rig.wait(300)
  expect(rig.of('foreign-commit').length).toBe(looks)
})
