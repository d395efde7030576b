import { afterAll, beforeEach, describe, expect, it } from 'vitest'
import type { Daemon } from '../support/daemon.ts'
import { sliceOf } from '../support/objects.ts'
import { Cluster } from './cluster.ts'
import { ControlGroup } from './control-group.ts'
import { servesOthers } from './costs.ts'
import { addressesOf, far, ports, wide } from './large-services.ts'
import { services } from './objects.ts'

const MIB = 1 << 20
/** Limit of deploy/kubernetes/base/daemonset.yaml. */
const LIMIT_BYTES = 512 * MIB
const SLICES = 150

const group = ControlGroup.open(LIMIT_BYTES)
const cluster = Cluster.ofEachTest()

beforeEach(() => cluster.open({ objects: services(20) }))

afterAll(async () => {
  if (typeof group !== 'string') await group.close()
})

/** EndpointSlices of no Service, the newest objects, which hold more parts together than there is room for. */
function slices(): readonly object[] {
  return Array.from({ length: SLICES }, (_, number) => {
    const name = `held-${number}`
    const labels = { 'kubernetes.io/service-name': name }
    const metadata = { namespace: 'tenant', name, labels, creationTimestamp: '2100-01-01T00:00:00Z' }
    return sliceOf(name, addressesOf(1_000), { ports: ports(5_000), metadata })
  })
}

const ATTACKS = {
  '5,000 ports with 1,000 endpoints each': wide('large', 5_000, 1_000),
  '2,000 ports at 1,000 external addresses': far('large', 2_000, 1_000),
  [`${SLICES} slices of 5,000 ports with 1,000 endpoints`]: slices(),
}

describe.skipIf(typeof group === 'string')('in a control group with the memory limit of the manifest', () => {
  const inGroup = async (): Promise<readonly [ControlGroup, Daemon]> => {
    if (typeof group === 'string') throw new Error(group)
    return [group, await cluster.running({ wrapper: group.wrapper })]
  }

  it.each(Object.entries(ATTACKS))(
    'F133 F150: %s, that come later, end no daemon',
    async (shape, objects) => {
      const [limited, daemon] = await inGroup()
      cluster.put(...objects)
      await daemon.logged('refused')
      await servesOthers(cluster, daemon, shape)
      expect(limited.killed).toBe(0)
    },
  )

  it.each(Object.entries(ATTACKS))(
    'F133 F150: %s, there at the start, end no daemon',
    async (shape, objects) => {
      cluster.put(...objects)
      const [limited, daemon] = await inGroup()
      await daemon.logged('refused')
      await servesOthers(cluster, daemon, shape)
      expect(limited.killed).toBe(0)
    },
  )
})
