import { execFile } from 'node:child_process'
import { promisify } from 'node:util'
import { beforeEach, describe, expect, it } from 'vitest'
import { COMMAND } from '../support/daemon.ts'
import { serviceOf, sliceOf } from '../support/objects.ts'
import { Cluster, metric } from './cluster.ts'
import { refusalsOf, servesOthers } from './costs.ts'
import { addressesOf, ports } from './large-services.ts'
import { services } from './objects.ts'

const cluster = Cluster.ofEachTest()

beforeEach(() => cluster.open({ objects: services(20) }))

/** Of tests: the heap is so small that fewer objects fill it. */
const SMALL_HEAP = ['--max-old-space-size=96']
const PAIRS = 150
const WIDE = { ports: ports(5_000), endpoints: addressesOf(1_000) }

/** A Service that is refused for its cost, and its slice, of a tenant; some 0.7 MB of the heap while they are held. */
function held(number: number): readonly [object, object] {
  const name = `held-${number}`
  const labels = { 'kubernetes.io/service-name': name }
  const vip = `172.30.${202 + (number >> 8)}.${number & 255}`
  return [
    serviceOf(name, vip, { ports: WIDE.ports }, { metadata: { namespace: 'tenant', name } }),
    sliceOf(name, WIDE.endpoints, { ports: WIDE.ports, metadata: { namespace: 'tenant', name, labels } }),
  ]
}

describe('objects that fill the memory by being there', () => {
  it('F150: are held without their parts beyond the share of their namespace, and again once there is room', async () => {
    for (let number = 0; number < PAIRS; number++) cluster.put(...held(number))
    const socket = cluster.file('admin.sock')
    const daemon = await cluster.running({ nodeArgs: SMALL_HEAP, args: [`--admin-socket=${socket}`] })
    const numberOf = () =>
      Array.from({ length: PAIRS }, (_, number) => number).find(number =>
        refusalsOf(daemon, `Service tenant/held-${number}`).some(reason => reason.startsWith('holds ')),
      )
    await daemon.until(() => numberOf() !== undefined)
    const left = numberOf() ?? 0
    await servesOthers(cluster, daemon, `${PAIRS} pairs of 5,000 ports with 1,000 endpoints`)
    expect(await metric('kprobe_refusals')).toBeGreaterThanOrEqual(PAIRS)
    const to = `--to=172.30.${202 + (left >> 8)}.${left & 255}:1000`
    const question = ['explain', '--from=203.0.113.7', to, `--admin-socket=${socket}`]
    const { stdout } = await promisify(execFile)(process.execPath, [COMMAND, ...question]).catch(
      error => error,
    )
    // Its slice is larger: where that is left out, the Service has come back.
    expect(stdout).toMatch(
      new RegExp(`(Service|EndpointSlice) tenant/held-${left} is not (served|used): it holds [56]004 parts`),
    )
    for (let number = 0; number < PAIRS; number++) if (number !== left) cluster.remove(...held(number))
    await daemon.until(() =>
      refusalsOf(daemon, `Service tenant/held-${left}`).some(reason => reason.startsWith('needs ')),
    )
  })

  it('F150: that come while it runs, and slices of no Service, are refused by name', async () => {
    const daemon = await cluster.running({ nodeArgs: SMALL_HEAP })
    for (let number = 0; number < PAIRS; number++) cluster.put(held(number)[1])
    await daemon.until(() =>
      daemon.said('refused').some(({ object }) => String(object).startsWith('EndpointSlice tenant/held-')),
    )
    await servesOthers(cluster, daemon, `${PAIRS} slices of 5,000 ports with 1,000 endpoints`)
  })
})

/** Empty, each takes some 520 B of the heap as long as it is held. */
const EMPTY_SLICES = 100_000

it('F151: 100,000 empty slices fill no heap of 64 MiB, and are refused by their namespace', async () => {
  for (let number = 0; number < EMPTY_SLICES; number++)
    cluster.put(
      sliceOf(`empty-${number}`, [], { ports: [], metadata: { namespace: 'aaa', name: `empty-${number}` } }),
    )
  const daemon = await cluster.running({ nodeArgs: ['--max-old-space-size=64'] })
  await daemon.until(() => refusalsOf(daemon, 'Namespace aaa').length === 1)
  await servesOthers(cluster, daemon, `${EMPTY_SLICES} empty slices`)
  expect(refusalsOf(daemon, 'Namespace aaa')[0]).toMatch(
    /^has its share of the \d+ EndpointSlices that this process may hold/,
  )
})
