import { describe, expect, it, vi } from 'vitest'
import { systemClock } from '../../../src/base/clock.ts'
import { demandSettled, readRules } from '../../../src/proof/kernel-rules.ts'
import { IpvsNode, type Part } from '../../support/ipvs-node.ts'

/* IPVS has no generation: rules are read between two reads of it. */

const SERVER = { family: 2, protocol: 6, address: '\xcb\0\x71\x07'.padEnd(16, '\0'), port: 80, mark: 0 }
const HOW = { scheduler: 'rr', flags: 0, timeoutS: 0, netmask: '\xff\xff\xff\xff' }
const ENTRY = { ip: '\xcb\0\x71\x07', protocol: 6, port: 80, ip2: '\x0a\0\0\0', prefix2: 8 }
const NOMATCH = 4

type Change = (node: IpvsNode, number: number) => void

const entries = (node: IpvsNode) => node.sets.slots[0]?.elements

const CHANGES: readonly (readonly [what: string, change: Change])[] = [
  [
    'a virtual server',
    (node, number) => {
      const timeoutS = 60 + number
      node.ipvs.servers.set('it', { ...SERVER, ...HOW, flags: 1, timeoutS, destinations: new Map() })
    },
  ],
  ['an entry', (node, number) => void entries(node)?.set('it', { ...ENTRY, port: 81 + number })],
  [
    'an exception',
    (node, number) => {
      // A read takes six requests: whether it is there is another thing before and after.
      const flags = [1, 2].includes(number % 4) ? NOMATCH : 0
      entries(node)?.set('it', { ...ENTRY, flags })
    },
  ],
  [
    'an address',
    (node, number) => {
      const ip = `\xcb\0\x71${String.fromCharCode(number)}`
      node.links.addAddress('eth0', { family: 2, ip, prefixLength: 24, flags: 0 })
    },
  ],
]

/** Another program changes something with each of the first requests for rules. */
async function readWhile(change: Change, times: number) {
  let requests = 0
  const node = new IpvsNode({ nowMs: () => 0 })
  node.links.add('eth0', undefined)
  node.ipvs.servers.set('it', { ...SERVER, ...HOW, destinations: new Map() })
  node.sets.put({ name: 'its', type: 'hash:ip,port,net', elements: new Map([['it', ENTRY]]) })
  node.onSend.push(part => {
    if (part === 'nft' && requests++ < times) change(node, requests)
  })
  // The sockets are opened in this order.
  const parts: readonly Part[] = ['nft', 'ipset']
  let opened = 0
  const rules = await readRules({
    sockets: {
      netfilter: () => node.open(parts[opened++] ?? 'nft'),
      generic: () => node.open('ipvs'),
      route: () => node.open('link'),
    },
    clock: systemClock,
    usesIpvs: true,
    device: undefined,
    isPassing: () => false,
  })
  return { ...rules, requests }
}

describe.each(CHANGES)('where another program changes %s', (_, change) => {
  it('once, reads again', async () => {
    const { unsettled, requests } = await readWhile(change, 1)
    expect(unsettled).toBe(false)
    expect(requests).toBe(2 * (await readWhile(change, 0)).requests)
  })

  it('again and again, says so', async () => {
    const rules = await readWhile(change, Number.POSITIVE_INFINITY)
    expect(rules.unsettled).toBe(true)
    expect(() => demandSettled(rules)).toThrow('the rules changed during each attempt to read them')
  })
})

it('closes its sockets where one cannot be opened', async () => {
  const node = new IpvsNode({ nowMs: () => 0 })
  const opened = (['nft', 'ipset'] as const).map(part => node.open(part))
  const closes = opened.map(its => vi.spyOn(its, 'close'))
  const refuse = () => {
    throw new Error('no socket')
  }
  const reading = { usesIpvs: true, device: undefined, isPassing: () => false }
  const sockets = { netfilter: () => opened.shift() ?? refuse(), generic: refuse, route: refuse }
  await expect(readRules({ sockets, clock: systemClock, ...reading })).rejects.toThrow('no socket')
  for (const close of closes) expect(close).toHaveBeenCalledOnce()
})
