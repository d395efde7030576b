import { beforeEach, describe, expect, it } from 'vitest'
import { ask, Cluster } from '../../faults/cluster.ts'
import { Removals } from '../../faults/cluster-removals.ts'
import { listRuleset } from '../../faults/kernel.ts'
import { clusterIp, endpointsOf, service, services } from '../../faults/objects.ts'
import type { AccessRule } from '../../support/apiserver/access.ts'
import { createRandom } from '../../support/apiserver/random.ts'
import type { Daemon } from '../../support/daemon.ts'
import { eventually } from '../../support/patience.ts'
import { IS_LONG, SEED, Tally } from '../attack.ts'

/** One verb on one resource. */
interface Right {
  readonly verb: string
  readonly group: string
  readonly resource: string
}

const READ: readonly (readonly [group: string, resource: string])[] = [
  ['', 'services'],
  ['discovery.k8s.io', 'endpointslices'],
  ['', 'nodes'],
  ['networking.k8s.io', 'servicecidrs'],
]
/** Without these nothing is known; without the others less is. */
const READING: readonly Right[] = READ.flatMap(([group, resource]) =>
  ['list', 'watch'].map(verb => ({ verb, group, resource })),
)
const WRITING: readonly Right[] = ['create', 'patch'].map(verb => ({
  verb,
  group: 'events.k8s.io',
  resource: 'events',
}))
const ALL = [...READING, ...WRITING]
/** `npm test` takes one of them away, `npm run attack` each. */
const TAKEN = IS_LONG ? READING : [createRandom(SEED).pick(READING.filter(({ verb }) => verb === 'watch'))]

const cluster = Cluster.ofEachTest()

beforeEach(async () => {
  await cluster.open({ objects: services(5) })
  cluster.configure({ token: 'token' })
})

function allow(rights: readonly Right[]): void {
  const rules = rights.map(
    ({ verb, group, resource }): AccessRule => ({ verbs: [verb], groups: [group], resources: [resource] }),
  )
  cluster.server.semantics.access.tokens.set('token', { name: 'kprobe', rules })
}

function without({ verb, resource }: Right): readonly Right[] {
  return ALL.filter(its => its.verb !== verb || its.resource !== resource)
}

/** Log lines that name the right that is missing, in the server's words. */
function namesIt(daemon: Daemon, { verb, resource }: Right): boolean {
  const words = `cannot ${verb} resource "${resource}"`
  return daemon.records.some(record => JSON.stringify(record).replaceAll('\\"', '"').includes(words))
}

/** A server that asks for the right at all: one that streams lists asks for none. */
function prepare({ verb }: Right): void {
  if (verb === 'list') cluster.server.semantics.watchList = false
  allow(ALL)
}

/** Something comes, and nothing goes. */
function change(): void {
  cluster.put(...service(9), ...service(2, { endpoints: [...endpointsOf(2, 2), '10.9.0.9:8080'] }))
}

async function heals(): Promise<void> {
  await cluster.converged()
  expect(listRuleset()).toContain('10.9.0.9')
  await eventually(async () => (await ask('/healthz')).code === 200)
}

describe('a right that the daemon lacks', () => {
  it.for(TAKEN)(
    'F148: $verb on $resource taken away is named; what is known stays; it heals',
    async (right, { task }) => {
      prepare(right)
      const daemon = await cluster.running()
      const removals = await Removals.begin()
      allow(without(right))
      // A list is asked for only where a watch cannot go on from what is known.
      await cluster.server.refuse()
      change()
      if (right.verb === 'list') cluster.server.store.compact()
      await cluster.server.listen()
      await daemon.until(() => namesIt(daemon, right))
      expect(removals.lines).toEqual([])
      expect(listRuleset()).toContain(clusterIp(1))
      expect(daemon.hasExited).toBe(false)
      allow(ALL)
      await heals()
      new Tally(task).add('rights taken away')
    },
  )

  it.for(IS_LONG ? READING : [])(
    'F148: $verb on $resource missing at the start is named; what an earlier daemon left stays; it heals',
    async (right, { task }) => {
      prepare(right)
      await cluster.programmedBefore()
      const removals = await Removals.begin()
      allow(without(right))
      const daemon = cluster.daemon()
      await daemon.until(() => namesIt(daemon, right))
      expect(removals.lines).toEqual([])
      expect(listRuleset()).toContain(clusterIp(1))
      allow(ALL)
      change()
      await heals()
      new Tally(task).add('rights missing at the start')
    },
  )

  it('F148: create on events missing is named, and Services are served all the same', async ({ task }) => {
    const right: Right = { verb: 'create', group: 'events.k8s.io', resource: 'events' }
    allow(without(right))
    const daemon = await cluster.running()
    const [object, slice] = service(20)
    // An address that is refused is an event.
    cluster.put({ ...object, spec: { ...Object(object).spec, externalIPs: ['127.0.0.1'] } }, slice ?? {})
    await daemon.until(() => namesIt(daemon, right))
    await cluster.converged()
    expect(await ask('/healthz')).toMatchObject({ code: 200 })
    new Tally(task).add('rights missing at the start')
  })
})
