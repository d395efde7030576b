import { describe, expect, it } from 'vitest'
import { snapshotJson } from '../../../src/daemon/saved/snapshot-json.ts'
import { type Loaded, Progress, withLoaded } from '../../../src/inspect/load.ts'
import { FakeClock } from '../../support/fake-clock.ts'
import { FakeIo } from '../../support/fake-io.ts'
import { configFrom } from '../../support/parse-flags.ts'
import { service, snapshotOf } from '../model/objects.ts'
import { adminSocket } from './admin-socket.ts'

const CONFIG = configFrom(['--hostname-override=here'])
const REFUSAL = { object: 'Service ns/web', field: 'spec.externalIPs', value: '127.0.0.1', reason: 'x' }

async function loadFrom(body: string): Promise<Loaded> {
  const daemon = await adminSocket(() => body)
  return await withLoaded({ config: CONFIG, daemon, notices: [] }, new FakeIo(), loaded => loaded)
}

/** Loads what a daemon answers that adds `more` to its objects. */
async function load(more: object): Promise<Loaded> {
  const { number, events } = snapshotJson(snapshotOf([service('web')]))
  return await loadFrom(JSON.stringify({ complete: true, number, events: [...events], ...more }))
}

describe('what the daemon says beside its objects', () => {
  it('is since when it refuses something, and which Services the kernel rejects', async () => {
    const { refusedSince, quarantined } = await load({
      refusedSince: [{ ...REFUSAL, wallMs: 5, orEarlier: true }, { ...REFUSAL, wallMs: 'late' }, 7, null],
      quarantined: [{ service: 'ns/web', error: 'ENOSPC' }],
    })
    expect(refusedSince?.(REFUSAL)).toEqual({ wallMs: 5, orEarlier: true })
    expect(refusedSince?.({ ...REFUSAL, value: '127.0.0.2' })).toBeUndefined()
    expect(quarantined?.get('ns/web')).toBe('ENOSPC')
  })

  it.each<[string, object, readonly string[]]>([
    ['nothing of a source that it reads', { silentMs: 90_000 }, []],
    [
      'how long it has not read its source',
      { silentMs: 72_400, trouble: 'ECONNREFUSED' },
      ['changes of the last 72 s: the daemon cannot read its source: ECONNREFUSED'],
    ],
    [
      'that its objects are those of its last run',
      { stale: true, silentMs: 5, trouble: 'ECONNREFUSED' },
      ['the current objects of the source: the daemon serves those of its last run: ECONNREFUSED'],
    ],
    ['nothing where the answer has another shape', [7], []],
  ])('is %s', async (_, source, expected) => {
    expect((await load({ source, refusedSince: 'x', quarantined: 3 })).notKnown).toEqual(expected)
  })

  it('is an error where it is not JSON', async () => {
    await expect(loadFrom('{"complete":')).rejects.toThrow(/admin.sock: the answer to \/snapshot is not JSON/)
  })

  it('may be absent', async () => {
    const { refusedSince, quarantined, notKnown } = await load({})
    expect([refusedSince?.(REFUSAL), quarantined?.size, notKnown]).toEqual([undefined, 0, []])
  })

  it.each([
    [
      { missing: ['Services', 'Nodes'], trouble: 'ECONNREFUSED' },
      /^the daemon at .*\.sock has not read all objects yet: it lacks Services, Nodes \(ECONNREFUSED\)$/,
    ],
    [undefined, /^the daemon at .*\.sock has not read all objects yet$/],
  ])('is what it waits for before it knows all objects: %j', async (source, message) => {
    await expect(load({ complete: false, source })).rejects.toThrow(message)
  })
})

it('says every 2 s how far a command is, from the first 2 s on, and nothing after its end', async () => {
  const clock = new FakeClock()
  const said: string[] = []
  const progress = new Progress(clock, { err: text => said.push(text) })
  progress.read(4_200)
  await clock.advance(1_999)
  expect(said).toEqual([])
  await clock.advance(1)
  progress.read(5_800)
  progress.begin('comparing with the kernel')
  await clock.advance(2_000)
  expect(said).toEqual([
    'reading the source: 4,200 objects so far\n',
    'comparing with the kernel (10,000 objects)\n',
  ])
  progress.end()
  await clock.advance(10_000)
  expect(said).toHaveLength(2)
  expect(clock.pending).toBe(0)
})
