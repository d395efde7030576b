import { execFile } from 'node:child_process'
import { promisify } from 'node:util'
import { afterEach, beforeEach, describe, expect, it } from 'vitest'
import { COMMAND, type Daemon } from '../support/daemon.ts'
import { eventually } from '../support/patience.ts'
import { ask, Cluster, metric } from './cluster.ts'
import { serviceOf, sliceOf } from './cluster-objects.ts'
import { peakOf } from './cluster-process.ts'
import { frontendNames } from './kernel.ts'
import { addressesOf, far, ports, VIP, wide } from './large-services.ts'
import { nameOf, service, services } from './objects.ts'

const MIB = 1 << 20
/** Limit of deploy/kubernetes/base/daemonset.yaml. */
const LIMIT_BYTES = 512 * MIB
/** The heap that Node.js has in a control group of that limit. */
const NODE_ARGS = ['--max-old-space-size=256']

let cluster: Cluster

beforeEach(async () => {
  cluster = await Cluster.open()
  cluster.put(...services(20))
})

afterEach(() => cluster.close())

const ATTACKS = {
  '5,000 ports with 1,000 endpoints each': wide('large', 5_000, 1_000),
  '2,000 ports at 1,000 external addresses': far('large', 2_000, 1_000),
} as const

function refusalsOf(daemon: Daemon, object: string): readonly string[] {
  return daemon.said('refused').flatMap(record => (record.object === object ? [String(record.reason)] : []))
}

/** Others come and go, and the daemon stays below its limit. */
async function servesOthers(daemon: Daemon, shape: string): Promise<void> {
  cluster.put(...service(50))
  cluster.remove(...service(3))
  await eventually(() => frontendNames().has(nameOf(50)) && !frontendNames().has(nameOf(3)))
  expect(daemon.hasExited).toBe(false)
  const peak = peakOf(daemon.pid)
  console.log(`${shape}: peak ${Math.round(peak / MIB)} MiB`)
  expect(peak).toBeLessThan(LIMIT_BYTES)
}

describe('a Service that needs more memory than there is', () => {
  it.each(Object.entries(ATTACKS))(
    'F133: %s are refused by name, and all others are served',
    async (shape, objects) => {
      const socket = cluster.file('admin.sock')
      const daemon = await cluster.running({ nodeArgs: NODE_ARGS, args: [`--admin-socket=${socket}`] })
      cluster.put(...objects)
      await daemon.until(() => refusalsOf(daemon, 'Service ns/large').length > 0)
      expect(refusalsOf(daemon, 'Service ns/large')[0]).toMatch(
        /needs about \d{4} MiB \(\d000 ports, .* a Service may take \d+ MiB/,
      )
      await servesOthers(daemon, shape)
      expect(await metric('kprobe_refusals')).toBe(1)
      expect(await ask('/healthz')).toMatchObject({ code: 200 })
      const events = () => cluster.server.store.list('events').map(event => String(event.note))
      await eventually(() => events().some(note => note.includes('MiB')))
      const question = ['explain', '--from=203.0.113.7', `--to=${VIP}:1000`, `--admin-socket=${socket}`]
      const { stdout } = await promisify(execFile)(process.execPath, [COMMAND, ...question]).catch(
        error => error,
      )
      expect(stdout).toMatch(/Service ns\/large is not served: it needs about \d+ MiB/)
      // Smaller, it is served.
      cluster.put(...wide('large', 10, 20))
      await eventually(() => frontendNames().has('ns/large'))
    },
  )

  it.each(Object.entries(ATTACKS))(
    'F133: %s that are there at the start keep nobody from being served',
    async (shape, objects) => {
      cluster.put(...objects)
      const daemon = await cluster.running({ nodeArgs: NODE_ARGS })
      await daemon.until(() => refusalsOf(daemon, 'Service ns/large').length === 1)
      await servesOthers(daemon, shape)
    },
  )

  it('F133: many Services just below the share of one are served as far as there is memory', async () => {
    const daemon = await cluster.running({ nodeArgs: NODE_ARGS })
    for (let number = 0; number < 12; number++) {
      const [large, slice] = wide(`large-${number}`, 290, 1_000)
      cluster.put(
        { ...large, spec: { ...Object(large).spec, clusterIPs: [`172.30.201.${number}`] } },
        slice ?? {},
      )
    }
    await daemon.until(() => daemon.said('refused').length > 0)
    await servesOthers(daemon, '12 Services of 290 ports with 1,000 endpoints each')
    await eventually(() => daemon.said('refused').length >= 9)
    expect(frontendNames().has('ns/large-0')).toBe(true)
  })
})

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
    await servesOthers(daemon, `${PAIRS} pairs of 5,000 ports with 1,000 endpoints`)
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
    await servesOthers(daemon, `${PAIRS} slices of 5,000 ports with 1,000 endpoints`)
  })
})
