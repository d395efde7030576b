import { expect, it } from 'vitest'
import { finish, systemClock } from '../../../../src/base/clock.ts'
import type { Config } from '../../../../src/config/config.ts'
import { createNftClient } from '../../../../src/kernel/nft/client.ts'
import type { ModeContext } from '../../../../src/modes/mode.ts'
import { nftables, openNftables } from '../../../../src/modes/nftables/mode.ts'
import { FakeKernel } from '../../../support/fake-kernel/kernel.ts'
import { backends, clusterIp, service, table } from '../../../support/frontends.ts'
import { commitAll, ip } from '../../../support/pipeline.ts'

const CONFIG = { proxyMode: 'nftables', detectLocal: { kind: 'NodeCIDR' } } as Config
const kernel = new FakeKernel()
const none = () => {
  throw new Error('the mode speaks with nf_tables alone')
}
const context: ModeContext = {
  config: { ...CONFIG, featureGates: {}, masqueradeBit: 14, connectionMetricsMax: 0 },
  clock: systemClock,
  sockets: { netfilter: () => kernel.open(), generic: none, route: none },
}

it('retires when its tables are there, unless it is called off, and leaves a table of the name that is not ours', async () => {
  const { plane, close } = openNftables(context)
  const frontends = table([
    service('ns/web', [{ frontends: [clusterIp(ip('10.96.0.1'), 80)], cluster: backends(2) }]),
  ])
  await commitAll(
    plane,
    plane.empty,
    finish(plane.render(frontends, { base: plane.empty, without: new Set() })),
  )
  const retire = (signal = new AbortController().signal) => nftables.retire(context, signal, true)
  expect(await retire(AbortSignal.abort())).toEqual({ kept: 'tables kube-proxy of another proxy mode' })
  expect(kernel.space.tables.size).toBe(2)
  const client = createNftClient({ transport: kernel.open(), clock: systemClock })
  const foreign = { family: 'ip', table: 'kube-proxy' } as const
  await client.commit([
    { ...foreign, verb: 'delete-table' },
    { ...foreign, verb: 'add-table', flags: 0, comment: undefined },
  ])
  await Promise.all([client.close(), close()])
  expect(await retire()).toBe('removed')
  expect(await retire()).toBe('nothing')
  expect([...kernel.space.tables.keys()]).toEqual(['2 kube-proxy'])
})
