import { createSocket } from 'node:dgram'
import { writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { afterEach, beforeEach, expect, it } from 'vitest'
import { withNetfilter } from '../../src/daemon/open.ts'
import { readRefused } from '../../src/modes/refused.ts'
import { Daemons } from '../support/daemon.ts'
import { Lab } from '../support/lab/lab.ts'
import { NO_LOCAL, TO_NO_LOCAL } from '../support/no-local.ts'
import { serviceOf } from '../support/objects.ts'

const daemons = new Daemons()
let lab: Lab

beforeEach(async () => {
  lab = await Lab.start()
})

afterEach(async () => {
  await daemons.end()
  await lab.close()
})

const UDP = [{ name: 'dns', port: 53, protocol: 'UDP' }]
// In iptables mode, each of its addresses has a rule of its own.
const EMPTY = serviceOf('shop/empty', '10.96.0.1', { ports: UDP, externalIPs: ['192.0.2.7'] })

/** A daemon of the node with these Services. */
async function start(...args: readonly string[]): Promise<void> {
  const source = join(daemons.folder(), 'objects.json')
  writeFileSync(source, JSON.stringify({ apiVersion: 'v1', kind: 'List', items: [EMPTY, ...NO_LOCAL] }))
  await daemons.running({ source, args: ['--metrics-bind-address=127.0.0.1:10249', ...args] })
}

async function send(address: string, port: number, times: number): Promise<void> {
  const client = createSocket('udp4')
  // Where the answer comes before the call returns, it is an error of the call.
  for (let n = 0; n < times; n++)
    await new Promise(done => client.send('?', port, address, () => done(undefined)))
  client.close()
}

async function refused(): Promise<readonly string[]> {
  const counts = await withNetfilter(connection => readRefused(connection, undefined))
  return counts.map(({ family, verdict, reason, service, packets }) =>
    [family, verdict, reason, service, packets].join(' '),
  )
}

it('nftables mode counts by reason, without a log', async () => {
  await start('--proxy-mode=nftables')
  expect(await refused()).toEqual([])
  await send('10.96.0.1', 53, 3)
  await send('10.96.0.1', 54, 2)
  expect(await refused()).toEqual(['IPv4 reject no-such-port  2', 'IPv4 reject no-endpoints  3'])
})

it('iptables mode counts by reason and Service', async () => {
  await start('--proxy-mode=iptables')
  await send('10.96.0.1', 53, 2)
  // The rules of external addresses see what arrives, and nothing that this node sends.
  await lab.trace([
    {
      from: 'outside',
      source: '198.51.100.9',
      protocol: 'UDP',
      destination: '192.0.2.7',
      port: 53,
      tries: 1,
    },
  ])
  await send('10.96.0.2', 53, 2)
  expect((await refused()).toSorted()).toEqual([
    'IPv4 drop no-local-endpoints shop/far:dns 2',
    'IPv4 reject no-endpoints shop/empty:dns 3',
  ])
})

it.each([
  ['nftables', []],
  // The kernel logs fewer of them than it drops.
  ['nftables', ['--log-rejects=7']],
  ['userspace', []],
])(
  '%s mode with %j counts the packets that a policy Local drops for want of an endpoint',
  async (mode, args) => {
    await start(`--proxy-mode=${mode}`, ...args)
    expect((await lab.trace(TO_NO_LOCAL)).map(({ verdict }) => verdict)).toEqual(['DROP', 'DROP'])
    const text = await (await fetch('http://127.0.0.1:10249/metrics')).text()
    const labels =
      'verdict="drop",reason="no-local-endpoints",ip_family="IPv4",namespace="",service="",port=""'
    expect(text.match(/^kprobe_refused_packets_total\{.*$/gm)).toEqual([
      `kprobe_refused_packets_total{${labels}} 75`,
    ])
  },
)
