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

/** Created after everything else, whatever the second of the test. */
const LATER = '2100-01-01T00:00:00Z'

/** A Service that is refused for its cost, and its slice, of a tenant; some 0.7 MB of the heap while they are held. */
function held(number: number): readonly [object, object] {
  const name = `held-${String(number).padStart(3, '0')}`
  const labels = { 'kubernetes.io/service-name': name }
  const vip = `172.30.${202 + (number >> 8)}.${number & 255}`
  const metadata = { namespace: 'tenant', name, creationTimestamp: LATER }
  return [
    serviceOf(name, vip, { ports: WIDE.ports }, { metadata }),
    sliceOf(name, WIDE.endpoints, { ports: WIDE.ports, metadata: { ...metadata, labels } }),
  ]
}

const LAST = `tenant/held-${PAIRS - 1}`
const isBeyondCap = (reason: string) => reason.startsWith('older Services fill the ')

describe('objects that fill the memory by being there', () => {
  it('F150: the newest are refused by name, and are held once there is room', async () => {
    for (let number = 0; number < PAIRS; number++) cluster.put(...held(number))
    const socket = cluster.file('admin.sock')
    const daemon = await cluster.running({ nodeArgs: SMALL_HEAP, args: [`--admin-socket=${socket}`] })
    await daemon.until(() => daemon.said('refused').some(({ reason }) => isBeyondCap(String(reason))))
    await servesOthers(cluster, daemon, `${PAIRS} pairs of 5,000 ports with 1,000 endpoints`)
    expect(await metric('kprobe_refusals')).toBeGreaterThanOrEqual(PAIRS)
    const question = ['why', '--from=outside', `--to=${LAST}:1000`, `--admin-socket=${socket}`]
    const { stderr } = await promisify(execFile)(process.execPath, [COMMAND, ...question]).catch(
      error => error,
    )
    expect(stderr).toMatch(/Service tenant\/held-149 is not served: older Services fill the \d+ parts/)
    for (let number = 0; number < PAIRS - 1; number++) cluster.remove(...held(number))
    await daemon.until(() =>
      refusalsOf(daemon, `Service ${LAST}`).some(reason => reason.startsWith('needs ')),
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

it('F151: 100,000 empty slices fill no heap of 64 MiB, and the newest are refused by name', async () => {
  const labels = { 'kubernetes.io/service-name': 'none' }
  for (let number = 0; number < EMPTY_SLICES; number++)
    cluster.put(
      sliceOf(`empty-${number}`, [], {
        ports: [],
        metadata: { namespace: 'aaa', name: `empty-${number}`, labels, creationTimestamp: LATER },
      }),
    )
  const daemon = await cluster.running({ nodeArgs: ['--max-old-space-size=64'] })
  await daemon.until(() => daemon.said('refused').length > 0)
  await servesOthers(cluster, daemon, `${EMPTY_SLICES} empty slices`)
  expect(daemon.said('refused')[0]).toMatchObject({
    object: expect.stringMatching(/^EndpointSlice aaa\/empty-/),
    reason: expect.stringMatching(/^older EndpointSlices fill the \d+ parts/),
  })
})
