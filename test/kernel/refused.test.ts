import { execFileSync } from 'node:child_process'
import { createSocket } from 'node:dgram'
import { writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { afterEach, expect, it } from 'vitest'
import { HERE, withNetfilter } from '../../src/daemon/open.ts'
import { readRefused } from '../../src/modes/refused.ts'
import { Daemons } from '../support/daemon.ts'
import { freshNetns } from '../support/lab/netns.ts'
import { serviceOf, sliceOf } from '../support/objects.ts'

const daemons = new Daemons()

afterEach(() => daemons.end())

const UDP = [{ name: 'dns', port: 53, protocol: 'UDP' }]
const ITEMS = [
  // In iptables mode, each of its addresses has a rule of its own.
  serviceOf('shop/empty', '10.96.0.1', { ports: UDP, externalIPs: ['192.0.2.7'] }),
  serviceOf('shop/far', '10.96.0.2', { ports: UDP, internalTrafficPolicy: 'Local' }),
  sliceOf('shop/far', [{ addresses: ['10.1.0.9'], nodeName: 'elsewhere' }], { ports: UDP }),
]

/** A node with these Services, in a mode. */
async function start(mode: string): Promise<void> {
  freshNetns()
  const lines = ['link set lo up', 'address add 192.168.0.2/32 dev lo', 'route add default dev lo']
  execFileSync('ip', ['-batch', '-'], { input: lines.join('\n') })
  const source = join(daemons.folder(), 'objects.json')
  writeFileSync(source, JSON.stringify({ apiVersion: 'v1', kind: 'List', items: ITEMS }))
  await daemons.running({ source, args: [`--proxy-mode=${mode}`] })
}

async function send(address: string, port: number, times: number): Promise<void> {
  const client = createSocket('udp4')
  // Where the answer comes before the call returns, it is an error of the call.
  for (let n = 0; n < times; n++)
    await new Promise(done => client.send('?', port, address, () => done(undefined)))
  client.close()
}

async function refused(): Promise<readonly string[]> {
  const counts = await withNetfilter(connection => readRefused({ connection, clock: HERE.clock }, undefined))
  return counts.map(({ family, verdict, reason, service, packets }) =>
    [family, verdict, reason, service, packets].join(' '),
  )
}

it('nftables mode counts by reason, without a log', async () => {
  await start('nftables')
  expect(await refused()).toEqual([])
  await send('10.96.0.1', 53, 3)
  await send('10.96.0.1', 54, 2)
  expect(await refused()).toEqual(['IPv4 reject no-such-port  2', 'IPv4 reject no-endpoints  3'])
})

it('iptables mode counts by reason and Service', async () => {
  await start('iptables')
  await send('10.96.0.1', 53, 2)
  await send('192.0.2.7', 53, 1)
  await send('10.96.0.2', 53, 2)
  expect((await refused()).toSorted()).toEqual([
    'IPv4 drop no-local-endpoints shop/far:dns 2',
    'IPv4 reject no-endpoints shop/empty:dns 3',
  ])
})
