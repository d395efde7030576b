import { execFile } from 'node:child_process'
import { promisify } from 'node:util'
import { beforeEach, describe, expect, it } from 'vitest'
import { COMMAND } from '../support/daemon.ts'
import { eventually } from '../support/patience.ts'
import { ask, Cluster, metric } from './cluster.ts'
import { refusalsOf, servesOthers } from './costs.ts'
import { frontendNames } from './kernel.ts'
import { far, VIP, wide } from './large-services.ts'
import { services } from './objects.ts'

/** The heap that Node.js has in a control group of that limit. */
const NODE_ARGS = ['--max-old-space-size=256']

const cluster = Cluster.ofEachTest()

beforeEach(() => cluster.open({ objects: services(20) }))

const ATTACKS = {
  '5,000 ports with 1,000 endpoints each': wide('large', 5_000, 1_000),
  '2,000 ports at 1,000 external addresses': far('large', 2_000, 1_000),
} as const

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
      await servesOthers(cluster, daemon, shape)
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
      await servesOthers(cluster, daemon, shape)
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
    await daemon.logged('refused')
    await servesOthers(cluster, daemon, '12 Services of 290 ports with 1,000 endpoints each')
    await daemon.logged('refused', 9)
    expect(frontendNames().has('ns/large-0')).toBe(true)
  })
})
