import { execFileSync } from 'node:child_process'
import { beforeEach, expect, it } from 'vitest'
import { eventually } from '../support/patience.ts'
import { ask, Cluster } from './cluster.ts'
import { Removals } from './cluster-removals.ts'
import { frontendNames, listTable, nft } from './kernel.ts'
import { nameOf, service, services } from './objects.ts'

/* A connection on which nothing arrives any more. It takes its time, so it is a file of its own beside others. */

/** Long enough to see that nothing is done about half a list. */
const HELD_MS = 3_000

const cluster = Cluster.ofEachTest()

beforeEach(() => cluster.open({ objects: services(8) }))

/** Our ends of the connections to a port of this machine. */
function establishedPorts(port: number): readonly string[] {
  const text = execFileSync('ss', ['-tnH', 'state', 'established', `dport = :${port}`], { encoding: 'utf8' })
  return [...text.matchAll(/127\.0\.0\.1:(\d+)\s+127\.0\.0\.1:\d+/g)].map(([, number]) => number ?? '')
}

/** Drops, without a word, every packet of the connections that there are; others can be made. */
function dropEstablished(): void {
  const ports = establishedPorts(cluster.server.port).join(', ')
  nft(`table inet middlebox {
    chain input { type filter hook input priority 0; tcp dport { ${ports} } drop; tcp sport { ${ports} } drop; }
  }`)
}

// 30 s without a word, then 15 s for the answer to a PING: nothing can shorten it.
it('F03: a connection that is half open while idle: a change made meanwhile is applied, and nothing was pruned', async () => {
  const daemon = await cluster.running()
  const removals = await Removals.begin()
  const requests = cluster.server.log.length
  dropEstablished()
  cluster.put(...service(9))
  await eventually(() => frontendNames().has(nameOf(9)), 90_000)
  await cluster.converged()
  expect(removals.lines).toEqual([])
  expect(cluster.asked(requests).filter(asked => asked.startsWith('list'))).toEqual([])
  await daemon.caughtUp()
  expect(daemon.said('fault')).toEqual([])
})

it('F04: a connection that is half open in the middle of a list: no part of it counts, and another is read', async () => {
  await cluster.programmedBefore()
  const before = listTable('ip kube-proxy')
  const removals = await Removals.begin()
  const held = [{ kind: 'ending', ending: 'stall', at: { bytes: 500 } }] as const
  cluster.server.faults.add({ resource: 'services', verb: 'watch', times: 1, faults: held })
  const daemon = cluster.daemon()
  await eventually(() => cluster.asked().includes('list services'))
  await eventually(() => establishedPorts(cluster.server.port).length > 0)
  dropEstablished()
  await new Promise(resolve => setTimeout(resolve, HELD_MS))
  expect(listTable('ip kube-proxy')).toBe(before)
  expect(await ask('/healthz')).toMatchObject({ code: 503 })
  cluster.put(...service(9))
  await daemon.synced(90_000)
  await cluster.converged()
  expect(removals.lines).toEqual([])
})
