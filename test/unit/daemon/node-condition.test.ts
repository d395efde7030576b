import { describe, expect, it, onTestFinished } from 'vitest'
import type { ApiAnswer, ApiQuestion } from '../../../src/daemon/cluster.ts'
import { conditionPatch, NodeCondition } from '../../../src/daemon/node-condition.ts'
import type { PlanLine } from '../../../src/reconcile/dataplane.ts'
import { FakeClock } from '../../support/fake-clock.ts'
import { createMetrics } from '../../support/metrics.ts'
import { recordedLog } from '../../support/recorded-log.ts'

const TYPE = 'ServiceProxyReady'

type Condition = Readonly<Record<string, string>>

function newWorld() {
  return {
    healthy: true,
    /** What the kernel lacks. */
    left: [] as PlanLine[],
    /** Services that the kernel rejects. */
    rejected: [] as string[],
    /** Why the server fails; empty while it answers. */
    down: '',
    /** Milliseconds that a read of the kernel takes. */
    readMs: 0,
    /** Why the kernel cannot be read; empty while it can. */
    unreadable: '',
    /** Happens while a change is on its way to the server. */
    meanwhile: (): void => undefined,
  }
}

/** A Node at a server that merges conditions by their type, and a kernel that is read back. */
function rig() {
  const clock = new FakeClock()
  const { log, said } = recordedLog()
  const requests: string[] = []
  const conditions = new Map<string, Condition>([['Ready', { type: 'Ready', status: 'True' }]])
  const world = newWorld()
  let reads = 0
  const metrics = createMetrics()
  const send = ({ method, body }: ApiQuestion): Promise<ApiAnswer> => {
    requests.push(method)
    if (world.down !== '') return Promise.resolve({ kind: 'failed', text: world.down })
    if (method === 'PATCH') {
      const patch: { status: { conditions: Condition[] } } = JSON.parse(JSON.stringify(body))
      for (const each of patch.status.conditions)
        conditions.set(each.type ?? '', { ...conditions.get(each.type ?? ''), ...each })
      world.meanwhile()
    }
    return Promise.resolve({ kind: 'taken', value: { status: { conditions: [...conditions.values()] } } })
  }
  const condition = new NodeCondition({
    clock,
    wallMs: () => 1_700_000_000_789 + clock.nowMs(),
    random: () => 0.5,
    log,
    type: TYPE,
    nodeName: 'here',
    health: () => world,
    difference: async () => {
      reads++
      if (world.readMs > 0) await new Promise<void>(resolve => void clock.after(world.readMs, resolve))
      if (world.unreadable !== '') throw new Error(world.unreadable)
      return { lines: world.left, complete: world.left.length === 0 }
    },
    quarantined: () =>
      world.rejected.map(service => ({
        service,
        error: new Error('no'),
        failures: 1,
        retryAtMs: 0,
        subject: {},
      })),
    send,
    metrics,
  })
  onTestFinished(() => condition.stop())
  return { clock, condition, conditions, world, requests, said, metrics, reads: () => reads }
}

const line = (object: string, service?: string): PlanLine => ({ verb: 'add', object, service })

describe('NodeCondition', () => {
  it('is True once the first sync was read back, and then nothing is sent', async () => {
    const { clock, condition, conditions, requests, metrics } = rig()
    await clock.advance(5_000)
    expect(requests).toEqual([])
    condition.synced()
    await clock.advance(0)
    const now = '2023-11-14T22:13:25Z'
    expect(conditions.get(TYPE)).toEqual({
      type: TYPE,
      status: 'True',
      reason: 'Programmed',
      message: expect.any(String),
      lastHeartbeatTime: now,
      lastTransitionTime: now,
    })
    expect(conditions.get('Ready')).toEqual({ type: 'Ready', status: 'True' })
    condition.synced()
    await clock.advance(500_000)
    expect(requests).toEqual(['GET', 'PATCH'])
    expect(await metrics.text()).toMatch(/^kprobe_node_condition_status 1$/m)
  })

  it('waits while the kernel lacks something, and is False from 10 s after the start on', async () => {
    const { clock, condition, conditions, world, requests } = rig()
    world.left = [line('element a', 'ns/a')]
    condition.synced()
    await clock.advance(9_000)
    expect(requests).toEqual([])
    await clock.advance(2_000)
    expect(conditions.get(TYPE)).toMatchObject({ status: 'False', reason: 'NotProgrammed' })
    world.left = []
    await clock.advance(2_000)
    expect(conditions.get(TYPE)).toMatchObject({ status: 'True' })
  })

  it('takes what only one of two reads finds for a commit in between, and leaves out rejected Services', async () => {
    const { clock, condition, conditions, world } = rig()
    world.rejected = ['ns/rejected']
    world.left = [line('element a', 'ns/a'), line('element r', 'ns/rejected')]
    condition.synced()
    await clock.advance(0)
    expect(conditions.has(TYPE)).toBe(false)
    world.left = [line('element b', 'ns/b'), line('element r', 'ns/rejected')]
    await clock.advance(1_000)
    expect(conditions.get(TYPE)).toMatchObject({ status: 'True' })
  })

  it('is False while nothing was synced 10 s after the start', async () => {
    const { clock, condition, conditions, world } = rig()
    world.healthy = false
    await clock.advance(11_000)
    expect(conditions.get(TYPE)).toMatchObject({ status: 'False', reason: 'NotProgrammed' })
    world.healthy = true
    condition.synced()
    await clock.advance(0)
    expect(conditions.get(TYPE)).toMatchObject({ status: 'True' })
  })

  it('follows the health, with the time of each change of the status', async () => {
    const { clock, condition, conditions, world } = rig()
    condition.synced()
    await clock.advance(1_000)
    const first = conditions.get(TYPE)?.lastTransitionTime
    world.healthy = false
    await clock.advance(10_000)
    const second = conditions.get(TYPE)
    expect(second).toMatchObject({ status: 'False', reason: 'ProgrammingStalled' })
    expect(second?.lastTransitionTime).not.toBe(first)
    await clock.advance(10_000)
    expect(conditions.get(TYPE)).toEqual(second)
    world.healthy = true
    await clock.advance(10_000)
    expect(conditions.get(TYPE)).toMatchObject({ status: 'True' })
  })

  it('changes nothing at the end, nor at the next start', async () => {
    const { clock, condition, conditions, requests } = rig()
    condition.synced()
    await clock.advance(1_000)
    const before = conditions.get(TYPE)
    await condition.stop()
    await clock.advance(100_000)
    expect([requests, conditions.get(TYPE)]).toEqual([['GET', 'PATCH'], before])
  })

  it('backs off while the server refuses, logs each reason once, and recovers', async () => {
    const { clock, condition, conditions, world, requests, said, metrics } = rig()
    world.down = 'nodes "here" is forbidden'
    condition.synced()
    await clock.advance(600_000)
    expect(said('cannot set the node condition: nodes "here" is forbidden; retrying')).toHaveLength(1)
    expect(requests.length).toBeGreaterThan(5)
    expect(requests.length).toBeLessThan(14)
    world.down = ''
    await clock.advance(300_000)
    expect(conditions.get(TYPE)).toMatchObject({ status: 'True' })
    expect(await metrics.text()).toMatch(/kprobe_node_condition_patches_total\{outcome="failed"\} \d+/)
  })

  it('is set again where another program removed it, and at once at a Node that was made anew', async () => {
    const { clock, condition, conditions } = rig()
    condition.take('one')
    condition.synced()
    await clock.advance(1_000)
    conditions.delete(TYPE)
    await clock.advance(700_000)
    expect(conditions.has(TYPE)).toBe(true)
    conditions.delete(TYPE)
    condition.take('one')
    await clock.advance(1_000)
    expect(conditions.has(TYPE)).toBe(false)
    condition.take('two')
    await clock.advance(10)
    expect(conditions.has(TYPE)).toBe(true)
  })

  it('is True within 10 s of the first sync, however long the server was away before', async () => {
    const { clock, condition, conditions, world } = rig()
    world.down = 'ECONNREFUSED'
    await clock.advance(3_600_000)
    world.down = ''
    condition.synced()
    await clock.advance(10_000)
    expect(conditions.get(TYPE)).toMatchObject({ status: 'True' })
  })

  it('reads the kernel for a twentieth of the time at most, and is False in time meanwhile', async () => {
    const { clock, condition, conditions, world, reads } = rig()
    world.left = [line('element a', 'ns/a')]
    world.readMs = 1_000
    condition.synced()
    await clock.advance(10_000)
    expect(conditions.get(TYPE)).toMatchObject({ status: 'False', reason: 'NotProgrammed' })
    expect(reads()).toBe(1)
    await clock.advance(195_000)
    expect(reads()).toBe(10)
  })

  it('logs once why the kernel cannot be read, and again when it is another reason', async () => {
    const { clock, condition, conditions, world, said } = rig()
    world.unreadable = 'EPERM'
    condition.synced()
    await clock.advance(100_000)
    expect(said('cannot read the kernel back')).toHaveLength(1)
    world.unreadable = 'ENOBUFS'
    await clock.advance(100_000)
    expect(said('cannot read the kernel back')).toHaveLength(2)
    world.unreadable = ''
    await clock.advance(2_000)
    expect(conditions.get(TYPE)).toMatchObject({ status: 'True' })
  })

  it('is set at once at a Node that was made anew while a change was on its way', async () => {
    const { clock, condition, conditions, world } = rig()
    condition.take('one')
    world.meanwhile = () => {
      world.meanwhile = () => undefined
      conditions.delete(TYPE)
      condition.take('two')
    }
    condition.synced()
    await clock.advance(10)
    expect(conditions.get(TYPE)).toMatchObject({ status: 'True' })
  })
})

it('is not patched where the Node says so, and is where the Node is odd', () => {
  const state = { status: 'True', reason: 'Programmed', message: 'fine' } as const
  const patch = (node: unknown) => conditionPatch({ type: TYPE, state, wallMs: 0 }, node)
  const ready = { type: 'Ready', status: 'True' }
  expect(patch({ status: { conditions: [ready, { type: TYPE, ...state }] } })).toBeUndefined()
  for (const node of [undefined, {}, { status: { conditions: 'none' } }, { status: { conditions: [7] } }])
    expect(patch(node)?.status.conditions).toHaveLength(1)
})
