import { expect, it } from 'vitest'
import { finish } from '../../../src/base/clock.ts'
import { readSnapshotJson, snapshotJson } from '../../../src/daemon/saved/snapshot-json.ts'
import type { ServiceListeners } from '../../../src/model/reserved.ts'
import { type Resolved, resolve } from '../../../src/model/resolve.ts'
import { applyEvents, type Snapshot } from '../../../src/model/snapshot.ts'
import { cidr, ip } from '../../support/addresses.ts'
import { frontendLines, node, OPTIONS, refusalLines, service, snapshotOf } from './objects.ts'

const BRIDGE = '172.17.0.1'
const web = service('web', { externalIPs: [BRIDGE] })
const twin = service('twin', { externalIPs: [BRIDGE], clusterIP: '10.96.0.2', ports: [{ port: 81 }] })

function found(snapshot: Snapshot, value: ServiceListeners | undefined): Snapshot {
  return applyEvents(snapshot, [{ kind: 'Listeners', key: 'ns/web', value }])
}

const TAKEN: ServiceListeners = { taken: [{ ip: ip(BRIDGE), protocol: 'TCP', port: 80 }] }

function resolved(snapshot: Snapshot, before?: Resolved, options = {}): Resolved {
  return finish(resolve({ ...OPTIONS, ...options }, before, snapshot))
}

function standing({ table }: Resolved) {
  const service = table.services.get('ns/web')
  const lines = (service?.ports ?? []).flatMap(frontendLines)
  return [lines.filter(line => !line.startsWith('10.96.')), refusalLines(service)]
}

const FREE = [[`${BRIDGE}:80 reject`], []]

it('refuses a port at which a process of the node listens, and takes it when that is gone', () => {
  const first = resolved(snapshotOf([web, twin]))
  expect(standing(first)).toEqual(FREE)
  const second = resolved(found(first.snapshot, TAKEN), first)
  expect(standing(second)).toEqual([
    [],
    [
      `Service ns/web: spec.externalIPs = ${BRIDGE}:80/TCP: a process of this node listens there; allow it with --allowed-external-cidrs`,
    ],
  ])
  expect(second.table.services.get('ns/twin')).toBe(first.table.services.get('ns/twin'))
  expect(standing(resolved(found(second.snapshot, undefined), second))).toEqual(FREE)
})

it('F134: leaves what a process has refused it to a younger load balancer, until the process is gone', () => {
  const dated = (year: number) => ({ metadata: { creationTimestamp: `${year}-01-01T00:00:00Z` } })
  const older = service('web', { externalIPs: [BRIDGE] }, dated(2020))
  const ingress = { ...dated(2021), status: { loadBalancer: { ingress: [{ ip: BRIDGE }] } } }
  const younger = service('lb', { type: 'LoadBalancer', clusterIP: '10.96.0.2' }, ingress)
  const first = resolved(snapshotOf([older, younger]))
  const second = resolved(found(first.snapshot, TAKEN), first)
  const third = resolved(found(second.snapshot, undefined), second)
  const anew = resolved(second.snapshot)
  const allowed = resolved(second.snapshot, second, { allowedExternalCidrs: [cidr('172.17.0.0/16')] })
  const refusals = [first, second, third, anew, allowed].map(({ table }) =>
    ['ns/web', 'ns/lb'].map(key => refusalLines(table.services.get(key)).length),
  )
  const [ofOlder, ofYounger] = [
    [1, 0],
    [0, 1],
  ]
  expect(refusals).toEqual([ofYounger, ofOlder, ofYounger, ofOlder, ofYounger])
  expect((second.table.services.get('ns/lb')?.ports ?? []).flatMap(frontendLines)).toContain(
    `${BRIDGE}:80 reject`,
  )
})

it('takes what --allowed-external-cidrs allows', () => {
  const options = { allowedExternalCidrs: [cidr('172.17.0.0/16')] }
  expect(standing(resolved(found(snapshotOf([web]), TAKEN), undefined, options))).toEqual(FREE)
})

it('refuses addresses within the pod CIDRs of this node, and follows these', () => {
  const own = node({ podCIDRs: ['172.17.0.0/24', 'fd00::/64'] })
  const first = resolved(snapshotOf([web]))
  const second = resolved(snapshotOf([web, own]), first)
  expect(standing(second)).toEqual([
    [],
    [
      `Service ns/web: spec.externalIPs = ${BRIDGE}: within the pod CIDR of this node; allow it with --allowed-external-cidrs`,
    ],
  ])
  expect(standing(resolved(snapshotOf([web, node({ podCIDRs: ['172.18.0.0/24'] })]), second))).toEqual(FREE)
})

it('is written as JSON and read again', () => {
  const endpoints = [{ ip: ip('192.0.2.1'), port: 6443 }]
  const before = applyEvents(found(snapshotOf([web]), TAKEN), [{ kind: 'ApiEndpoints', value: endpoints }])
  const { number, events } = snapshotJson(before)
  const after = finish(readSnapshotJson(JSON.parse(JSON.stringify({ number, events: [...events] }))))
  expect(after.listeners.entries()).toEqual(before.listeners.entries())
  expect(after.apiEndpoints).toEqual(endpoints)
})
