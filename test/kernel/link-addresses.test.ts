import { execFileSync, spawn } from 'node:child_process'
import { once } from 'node:events'
import { afterEach, beforeEach, expect, it } from 'vitest'
import { systemClock } from '../../src/base/clock.ts'
import { formatIp } from '../../src/base/ip.ts'
import {
  type AddressReader,
  createAddressReader,
  listAddressesNow,
  ownAddresses,
} from '../../src/kernel/link/links.ts'
import { Connection } from '../../src/netlink/connection.ts'
import { NETLINK_ROUTE } from '../../src/netlink/constants.ts'
import { openNetlink } from '../../src/netlink/native.ts'
import { freshNetns } from '../support/lab/netns.ts'
import { eventually } from '../support/patience.ts'

let reader: AddressReader

function ip(...lines: readonly string[]): void {
  execFileSync('ip', ['-batch', '-'], { input: lines.join('\n') })
}

async function addresses(): Promise<string[]> {
  return (await reader.read()).map(formatIp).sort()
}

beforeEach(() => {
  freshNetns()
  reader = createAddressReader({
    openTransport: () => openNetlink({ protocol: NETLINK_ROUTE }),
    clock: systemClock,
  })
})

afterEach(async () => {
  await reader.close()
})

it('lists the addresses of a link whose other end is down, and of one that is down itself', async () => {
  ip(
    'link add left type veth peer name right',
    'link add idle type veth peer name other',
    'link set lo up',
    'link set left up',
    'link set right up',
    'address add 192.0.2.1/24 dev left',
    'address add 2001:db8::1/64 dev left nodad',
    'address add 198.51.100.1 peer 198.51.100.2 dev left',
    'address add 203.0.113.1/32 dev idle',
  )
  const ours = ['127.0.0.1', '192.0.2.1', '198.51.100.1', '2001:db8::1', '203.0.113.1', '::1']
  const ofOthers = (list: readonly string[]) => list.filter(text => !text.startsWith('fe80:'))
  expect(ofOthers(await addresses())).toEqual(ours)
  ip('link set right down')
  expect(execFileSync('ip', ['-o', 'link', 'show', 'left'], { encoding: 'utf8' })).toContain('NO-CARRIER')
  expect(ofOthers(await addresses())).toEqual(ours)
})

it('takes the oldest address of a prefix for the own one', async () => {
  const ours = ['192.0.2.10/24', '192.0.2.50/24', '2001:db8::10/64', '2001:db8::50/64', '2001:db8::51/64']
  const others = ['198.51.100.1/32', '2001:db8:1::1/128', '203.0.113.1/24']
  ip(
    'link add left type veth peer name right',
    ...[...ours, ...others].map(text => `address add ${text} dev left`),
  )
  const connection = new Connection({
    transport: openNetlink({ protocol: NETLINK_ROUTE }),
    clock: systemClock,
  })
  const own = [...ownAddresses(listAddressesNow(connection) ?? [], [])].map(formatIp).sort()
  await connection.close()
  expect(own).toEqual(['192.0.2.10', '2001:db8::10', '203.0.113.1'])
})

it('lists thousands of addresses, in as many datagrams as it takes', async () => {
  const wanted = Array.from({ length: 4_000 }, (_, n) => `10.1.${n >> 8}.${n & 255}`)
  ip('link add idle type veth peer name other', ...wanted.map(text => `address add ${text}/32 dev idle`))
  expect(await addresses()).toEqual(wanted.sort())
})

it('never lists fewer than those that stay, while those before them in the list come and go', async () => {
  const come = Array.from({ length: 200 }, (_, n) => `10.1.0.${n}`)
  const stay = Array.from({ length: 2_000 }, (_, n) => `10.2.${n >> 8}.${n & 255}`)
  const line = (verb: string, text: string) => `address ${verb} ${text}/32 dev idle`
  ip('link add idle type veth peer name other', ...[...come, ...stay].map(text => line('add', text)))
  const churn = spawn('ip', ['-batch', '-'], { stdio: ['pipe', 'ignore', 'inherit'] })
  const ended = once(churn, 'close')
  let listings = 0
  let shortest = stay.length
  for (let round = 0; round < 20; round++) {
    // At full speed from before the listings until after them, then a pause in which one can succeed.
    churn.stdin.write(`${come.flatMap(text => [line('delete', text), line('add', text)]).join('\n')}\n`)
    for (let listing = 0; listing < 5; listing++) {
      const listed = new Set(await addresses())
      shortest = Math.min(shortest, stay.filter(text => listed.has(text)).length)
      listings++
    }
  }
  churn.stdin.end()
  await ended
  expect([shortest, listings]).toEqual([stay.length, 100])
})

it('is told when an address comes and when it goes', async () => {
  ip('link add left type veth peer name right', 'link set left up')
  let hints = 0
  const unwatch = reader.watch(() => hints++)
  const told = async (): Promise<boolean> => {
    const before = hints
    await eventually(() => hints > before)
    return true
  }
  const added = told()
  ip('address add 192.0.2.1/24 dev left')
  expect(await added).toBe(true)
  const removed = told()
  ip('address del 192.0.2.1/24 dev left')
  expect(await removed).toBe(true)
  await unwatch?.()
})
