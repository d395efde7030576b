import { describe, expect, it } from 'vitest'
import type { ApiServerOptions } from '../support/apiserver/http-server.ts'
import { Cluster } from './cluster.ts'
import { Removals } from './cluster-removals.ts'
import { frontendNames, listRuleset } from './kernel.ts'
import { nameOf, service, services } from './objects.ts'

const AGAIN = 'reads it once more'

const cluster = Cluster.ofEachTest()

const open = (server: ApiServerOptions = {}): Promise<void> => cluster.open({ server, objects: services(20) })

/** The next list of these lacks everything. */
function listNothingOnce(resource: string): void {
  cluster.server.faults.add({
    resource,
    verb: 'list',
    times: 1,
    faults: [{ kind: 'twist', emptyList: true }],
  })
}

describe('a list that takes most away after a restart', () => {
  it.each(['services', 'endpointslices'])(
    'F139: %s that are missing in the first list only lose nothing that the kernel serves',
    async resource => {
      await open({ watchList: false })
      await cluster.programmedBefore()
      const removals = await Removals.begin()
      listNothingOnce(resource)
      const daemon = await cluster.running()
      expect(await daemon.logged(AGAIN)).toHaveLength(1)
      await cluster.converged()
      expect(removals.lines).toEqual([])
      cluster.put(...service(21))
      cluster.remove(...service(0))
      await cluster.converged()
    },
  )

  it('F139: so it is in iptables mode', async () => {
    await open({ watchList: false })
    const args = ['--proxy-mode=iptables']
    await (await cluster.running({ args })).stop()
    listNothingOnce('services')
    const daemon = await cluster.running({ args })
    expect(await daemon.logged(AGAIN)).toHaveLength(1)
    const chains = new Set(listRuleset().match(/KUBE-SVC-\w+/g))
    expect(chains.size).toBe(20)
  })

  it('F139: what the second list lacks as well is removed', async () => {
    await open()
    await cluster.programmedBefore()
    for (let number = 0; number < 18; number++) cluster.remove(...service(number))
    const daemon = await cluster.running()
    await cluster.converged()
    expect(await daemon.logged(AGAIN)).toHaveLength(1)
    expect([...frontendNames()].sort()).toEqual([nameOf(18), nameOf(19)])
  })

  it('F139: a restart that finds all, or few missing, lists once', async () => {
    await open()
    await cluster.programmedBefore()
    for (let number = 0; number < 8; number++) cluster.remove(...service(number))
    const since = cluster.server.log.length
    const daemon = await cluster.running()
    await cluster.converged()
    await daemon.caughtUp()
    expect(daemon.said(AGAIN)).toEqual([])
    expect(cluster.asked(since).filter(text => text === 'list services')).toHaveLength(1)
  })
})
