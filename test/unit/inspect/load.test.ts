import { createServer, type Server } from 'node:http'
import { join } from 'node:path'
import { afterEach, beforeEach, describe, expect, it } from 'vitest'
import { snapshotJson } from '../../../src/daemon/saved/snapshot-json.ts'
import { type Loaded, withLoaded } from '../../../src/inspect/load.ts'
import { FakeIo } from '../../support/fake-io.ts'
import { temporaryFolder } from '../../support/folder.ts'
import { configFrom } from '../../support/parse-flags.ts'
import { service, snapshotOf } from '../model/objects.ts'

const CONFIG = configFrom(['--hostname-override=here'])
const REFUSAL = { object: 'Service ns/web', field: 'spec.externalIPs', value: '127.0.0.1', reason: 'x' }

let folder: string
let server: Server | undefined

beforeEach(() => {
  folder = temporaryFolder()
})

afterEach(() => {
  server?.close()
})

/** Loads what a daemon answers that adds `more` to its objects. */
async function load(more: object): Promise<Loaded> {
  const socket = join(folder, 'admin.sock')
  const { number, events } = snapshotJson(snapshotOf([service('web')]))
  const body = JSON.stringify({ complete: true, number, events: [...events], ...more })
  server = createServer((_, response) => response.end(body))
  await new Promise<void>(done => server?.listen(socket, done))
  const request = { config: CONFIG, daemon: socket, notices: [] }
  return await withLoaded(request, new FakeIo(), loaded => loaded)
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
    const socket = join(folder, 'admin.sock')
    server = createServer((_, response) => response.end('{"complete":'))
    await new Promise<void>(done => server?.listen(socket, done))
    await expect(
      withLoaded({ config: CONFIG, daemon: socket, notices: [] }, new FakeIo(), loaded => loaded),
    ).rejects.toThrow(`${socket}: the answer to /snapshot is not JSON`)
  })

  it('may be absent', async () => {
    const { refusedSince, quarantined, notKnown } = await load({})
    expect([refusedSince?.(REFUSAL), quarantined?.size, notKnown]).toEqual([undefined, 0, []])
  })

  it.each([
    [
      { missing: ['Services', 'Nodes'], trouble: 'ECONNREFUSED' },
      ': it lacks Services, Nodes (ECONNREFUSED)',
    ],
    [undefined, ''],
  ])('is what it waits for before it knows all objects: %j', async (source, words) => {
    await expect(load({ complete: false, source })).rejects.toThrow(
      new Error(`the daemon at ${join(folder, 'admin.sock')} has not read all objects yet${words}`),
    )
  })
})
