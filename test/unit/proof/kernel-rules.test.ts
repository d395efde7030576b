import { expect, it } from 'vitest'
import { systemClock } from '../../../src/base/clock.ts'
import { demandSettled, readRules } from '../../../src/proof/kernel-rules.ts'
import { IpvsNode, type Part } from '../../support/ipvs-node.ts'

/* IPVS has no generation: rules are read between two reads of it. */

/** Another program adds a virtual server with each of the first requests for rules. */
async function readWhile(additions: number) {
  let requests = 0
  const node = new IpvsNode({ nowMs: () => 0 })
  let left = additions
  node.onSend.push(part => {
    if (part !== 'nft') return
    requests++
    if (left-- <= 0) return
    const port = node.ipvs.servers.size + 1
    const address = '\xcb\0\x71\x07'.padEnd(16, '\0')
    const where = { family: 2, protocol: 6, address, port, mark: 0 }
    const how = { scheduler: 'rr', flags: 0, timeoutS: 0, netmask: '\xff\xff\xff\xff' }
    node.ipvs.servers.set(`${port}`, { ...where, ...how, destinations: new Map() })
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
    usesIpsets: true,
    usesIpvs: true,
    isPassing: () => false,
  })
  return { ...rules, requests }
}

it('reads again what changed while it read rules', async () => {
  const { ipvs, unsettled, requests } = await readWhile(1)
  expect(unsettled).toBe(false)
  expect(requests).toBe(2 * (await readWhile(0)).requests)
  expect(ipvs?.servers).toHaveLength(1)
})

it('says so where IPVS never rests', async () => {
  const rules = await readWhile(Number.POSITIVE_INFINITY)
  expect(rules.unsettled).toBe(true)
  expect(() => demandSettled(rules)).toThrow('the kernel changed meanwhile, during each attempt to read it')
})
