import { describe, expect, it } from 'vitest'
import { changedAddresses } from '../../../src/api/endpoint-messages.ts'
import type { ServiceView } from '../../../src/api/service-view.ts'
import type { ServiceFrontends } from '../../../src/model/frontend.ts'
import { applyEvents, EMPTY_SNAPSHOT } from '../../../src/model/snapshot.ts'
import {
  backends,
  clusterIp,
  EXTERNAL,
  EXTERNAL_LOCAL,
  service as frontendsOf,
  ip4,
  type PortSpec,
  REJECT,
  vip,
} from '../../support/frontends.ts'
import { endpoint, type Fields, service, slice, texts } from '../model/objects.ts'
import { detailed } from './views.ts'

const KEY = 'ns/web'
const CLUSTER_IP = clusterIp(ip4(10, 96, 0, 1), 80)
const one = (port: Partial<PortSpec>): ServiceFrontends =>
  frontendsOf(KEY, [{ frontends: [CLUSTER_IP], ...port }])

interface Side {
  readonly frontends: ServiceFrontends
  readonly spec?: Fields
  readonly slices?: readonly Fields[]
}

function viewOf({ frontends, spec, slices = [] }: Side): ServiceView {
  const snapshot = applyEvents(EMPTY_SNAPSHOT, [service('web', spec), ...slices].map(detailed))
  const its = snapshot.services.get(KEY)
  if (its === undefined) throw new Error('no Service')
  return { service: its, frontends, slices: snapshot.slices.get(KEY) ?? [] }
}

/** Sorted, as text; undefined for all. */
function changed(from: Side, to: Side): readonly string[] | undefined {
  const ips = changedAddresses(viewOf(from), viewOf(to))
  return ips && texts([...ips]).toSorted()
}

describe('the addresses that changed', () => {
  const [a, b, c] = ['10.21.0.1', '10.21.0.2', '10.21.0.3']

  it('are those of back ends that come, go, or are another’s, in any list that leads somewhere', () => {
    const cluster = backends(2)
    expect(changed({ frontends: one({ cluster }) }, { frontends: one({ cluster: backends(2) }) })).toEqual([])
    expect(changed({ frontends: one({ cluster }) }, { frontends: one({ cluster: backends(3) }) })).toEqual([
      c,
    ])
    expect(changed({ frontends: one({ cluster: backends(3) }) }, { frontends: one({ cluster }) })).toEqual([
      c,
    ])
    const here = cluster.map(its => ({ ...its, local: true }))
    expect(changed({ frontends: one({ cluster }) }, { frontends: one({ cluster: here }) })).toEqual([a, b])
    const other = cluster.map((its, index) => ({ ...its, port: 8080 + index }))
    expect(changed({ frontends: one({ cluster }) }, { frontends: one({ cluster: other }) })).toEqual([b])
    const frontends = [CLUSTER_IP, vip(ip4(192, 0, 2, 1), 80, EXTERNAL_LOCAL)]
    const local = backends(1)
    expect(
      changed({ frontends: one({ frontends, cluster }) }, { frontends: one({ frontends, cluster, local }) }),
    ).toEqual([a])
  })

  it('are all of a list that nothing led to, and none where routes alone have other names', () => {
    const cluster = backends(2)
    const leading = (route: typeof REJECT) => ({
      frontends: one({ frontends: [CLUSTER_IP, vip(ip4(192, 0, 2, 1), 80, route)], cluster, local: cluster }),
    })
    expect(changed(leading(REJECT), leading(EXTERNAL))).toEqual([a, b])
    expect(changed(leading(EXTERNAL), leading(EXTERNAL_LOCAL))).toEqual([])
  })

  it('are those whose names differ, whatever else their slices say', () => {
    const frontends = one({ cluster: backends(3) })
    const named = (...names: readonly string[]) => [
      slice(
        's1',
        'web',
        names.map((hostname, index) => endpoint(`10.21.0.${index + 1}`, { hostname })),
      ),
    ]
    expect(changed({ frontends, slices: named('x', 'y') }, { frontends, slices: named('x', 'y') })).toEqual(
      [],
    )
    expect(changed({ frontends, slices: named('x', 'y') }, { frontends, slices: named('x', 'z') })).toEqual([
      b,
    ])
    expect(changed({ frontends, slices: named('x') }, { frontends, slices: named('x', 'z') })).toEqual([b])
    expect(changed({ frontends, slices: named('x', 'y') }, { frontends })).toEqual([a, b])
  })

  it('may be any when the Service has other ports, targets or policies, and none when it has another label', () => {
    const frontends = one({ cluster: backends(2) })
    const told = (spec: Fields) => changed({ frontends }, { frontends, spec })
    expect(told({ ports: [{ port: 80, targetPort: 'web' }] })).toBeUndefined()
    expect(told({ internalTrafficPolicy: 'Local' })).toBeUndefined()
    expect(told({ sessionAffinity: 'ClientIP' })).toEqual([])
    const two = frontendsOf(KEY, [
      { frontends: [CLUSTER_IP], cluster: backends(2) },
      { name: 'x', frontends: [CLUSTER_IP], cluster: backends(2) },
    ])
    expect(changed({ frontends }, { frontends: two })).toBeUndefined()
    expect(changed({ frontends: two }, { frontends })).toBeUndefined()
    const renamed = one({ name: 'y', cluster: backends(2) })
    expect(changed({ frontends }, { frontends: renamed })).toBeUndefined()
  })
})
