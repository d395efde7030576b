import { type Clock, finish } from '../../src/base/clock.ts'
import { createNftClient } from '../../src/kernel/nft/client.ts'
import type { Semantics } from '../support/apiserver/semantics.ts'
import { metadataOf } from '../support/apiserver/store.ts'
import type { FakeKernel } from '../support/fake-kernel/kernel.ts'
import { change, compute, NODE_NAME, planeOn } from '../support/pipeline.ts'

/** What would have to be done for the kernel to hold what the objects ask for; empty when it does (INV-3). */
export async function differences(
  { store, groupsOff }: Semantics,
  kernel: FakeKernel,
  clock: Clock,
): Promise<readonly string[]> {
  const client = createNftClient({ transport: kernel.open(), clock })
  const plane = planeOn(client, {})
  try {
    const { state } = await plane.observe()
    const node = store.list('nodes').filter(object => metadataOf(object).name === NODE_NAME)
    const cidrs = groupsOff.has('networking.k8s.io') ? [] : store.list('servicecidrs')
    const objects = [...node, ...cidrs, ...store.list('services'), ...store.list('endpointslices')]
    const { table } = change(compute({}, []), { objects }).resolved
    const wanted = finish(plane.render(table, { base: state, without: new Set() }))
    const plan = finish(plane.diff(state, wanted))
    return [...plan.describe()].map(({ verb, object, service }) => `${verb} ${object} (${service ?? 'all'})`)
  } finally {
    await client.close()
  }
}
