import { chmodSync, readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { beforeEach, describe, expect, it, onTestFinished } from 'vitest'
import type { Intake } from '../../../../src/daemon/intake.ts'
import { SavedState } from '../../../../src/daemon/saved/saved-state.ts'
import { StateFile, type StateOwner, stateChunks } from '../../../../src/daemon/saved/state-file.ts'
import type { Snapshot } from '../../../../src/model/snapshot.ts'
import { FakeClock } from '../../../support/fake-clock.ts'
import { temporaryFolder } from '../../../support/folder.ts'
import { createMetrics } from '../../../support/metrics.ts'
import { eventually } from '../../../support/patience.ts'
import { recordedLog } from '../../../support/recorded-log.ts'
import { service, snapshotOf } from '../../model/objects.ts'

const OWNER: StateOwner = { node: 'here', proxy: '', server: 'https://192.0.2.1:6443', authorities: ['aa'] }
const STATE = snapshotOf([service('web')])
const CONFIRMED_MS = 1_700_000_000_000

let folder: string

beforeEach(() => {
  folder = temporaryFolder()
})

async function save(snapshot: Snapshot = STATE): Promise<string> {
  const file = new StateFile(folder, '')
  await file.write(stateChunks({ owner: OWNER, savedAt: '' }, snapshot))
  await file.confirm(CONFIRMED_MS)
  return file.path
}

/** A SavedState 42 s after the file was confirmed, with an intake that takes everything. */
function rig({ mayServe = (): boolean => true, owner = OWNER, isLocked = (): boolean => false } = {}) {
  const clock = new FakeClock()
  const { log, lines, said } = recordedLog()
  const offered: Snapshot[] = []
  const intake: { complete: boolean } & Pick<Intake, 'standIn' | 'isStale' | 'status'> = {
    complete: false,
    status: { missing: [], heardMs: 0, trouble: undefined },
    isStale: (): boolean => offered.length > 0 && !intake.complete,
    standIn: async (snapshot: Snapshot, allowed: (its: Snapshot) => Promise<boolean>) => {
      if (!(await allowed(snapshot))) return 'denied' as const
      offered.push(snapshot)
      return 'stands' as const
    },
  }
  const metrics = createMetrics({ servedStaleS: () => saved.staleS })
  const saved: SavedState = new SavedState({
    clock,
    log,
    wallMs: () => CONFIRMED_MS + 42_000 + clock.nowMs(),
    folder,
    proxy: '',
    owner: async () => {
      if (isLocked()) throw new Error('EACCES: token')
      return owner
    },
    intake,
    mayServe: () => Promise.resolve(mayServe()),
    metrics,
  })
  onTestFinished(() => saved.stop())
  return { saved, clock, lines, said, offered, metrics, intake }
}

/** The same with a saved state, once the source cannot be read. */
async function troubled(options: Parameters<typeof rig>[0] = {}) {
  const path = await save()
  const its = rig(options)
  its.saved.begin()
  its.saved.troubled()
  return { ...its, path }
}

const SERVES = 'kprobe serves the saved state until it does'

describe('SavedState', () => {
  it('serves half a second after the start, with the age in the log, in the metrics, and repeated', async () => {
    await save()
    const { saved, clock, said, offered, metrics } = rig()
    saved.begin()
    await clock.advance(499)
    expect(offered).toHaveLength(0)
    await clock.advance(1)
    await eventually(() => offered.length === 1)
    expect(offered[0]?.services.has('ns/web')).toBe(true)
    await eventually(() => said(SERVES).length === 1)
    expect(said(SERVES)[0]).toMatchObject({ level: 'warn', staleS: 43, services: 1 })
    expect(Math.round(saved.staleS ?? 0)).toBe(43)
    expect(await metrics.text()).toMatch(/^kprobe_saved_state_served 1$/m)
    expect(await metrics.text()).toMatch(/^kprobe_saved_state_stale_seconds 42\.5$/m)
    await clock.advance(30_000)
    await clock.advance(60_000)
    expect(said(SERVES)).toHaveLength(3)
  })

  it('serves at once when the source cannot be read', async () => {
    const { saved, clock, offered } = await troubled()
    await eventually(() => offered.length === 1)
    saved.troubled()
    await clock.advance(600)
    expect(offered).toHaveLength(1)
  })

  it('gives an API server that has answered three seconds for its lists, and none that fails then', async () => {
    await save()
    const slow = rig()
    slow.saved.begin()
    slow.saved.answered()
    await slow.clock.advance(2_900)
    expect(slow.lines).toEqual([])
    await slow.clock.advance(200)
    await eventually(() => slow.offered.length === 1)
    const failing = rig()
    failing.saved.begin()
    failing.saved.answered()
    failing.saved.troubled()
    await eventually(() => failing.offered.length === 1)
  })

  it('reads nothing when the first list comes in time', async () => {
    const path = await save()
    writeFileSync(path, 'nonsense')
    const { saved, clock, lines, intake } = rig()
    saved.begin()
    intake.complete = true
    await clock.advance(5_000)
    expect(lines).toEqual([])
  })

  it('ends with the first list: no age any more, one line, and from then on it saves', async () => {
    const { saved, clock, said, offered, metrics, intake, path } = await troubled()
    await eventually(() => offered.length === 1)
    saved.synced(STATE)
    await clock.advance(60_000)
    expect(readFileSync(path, 'utf8')).toContain('"savedAt":""')
    intake.complete = true
    saved.confirmed()
    saved.synced(snapshotOf([service('web'), service('new')]))
    expect(said('its lists replace the saved state')).toHaveLength(1)
    expect(saved.staleS).toBeUndefined()
    expect(await metrics.text()).toMatch(/^kprobe_saved_state_served 0$/m)
    await saved.stop()
    expect(readFileSync(path, 'utf8')).toContain('ns/new')
    expect(await metrics.text()).toMatch(/^kprobe_saved_state_saves_total\{outcome="saved"\} 1$/m)
    expect(said(SERVES)).toHaveLength(2)
  })

  it('leaves the kernel alone while that serves something else, and reads the objects again then', async () => {
    let isFree = false
    const { saved, clock, said, offered } = await troubled({ mayServe: () => isFree })
    await eventually(() => said('kprobe changes nothing until the API server answers').length === 1)
    await clock.advance(29_000)
    expect([offered.length, saved.staleS]).toEqual([0, undefined])
    await save(snapshotOf([service('read-again')]))
    isFree = true
    await clock.advance(1_500)
    await eventually(() => offered.length === 1)
    expect(offered[0]?.services.has('ns/read-again')).toBe(true)
  })

  it('serves soon after the credentials can be read again, and meanwhile warns at growing pauses', async () => {
    await save()
    let isLocked = true
    let checks = 0
    const { saved, clock, said, offered } = rig({ isLocked: () => ++checks > 0 && isLocked })
    const warned = () => said('cannot check whether the saved state may be served')
    saved.begin()
    // The source fails now and then.
    for (let time = 0; time < 40; time++) {
      const before = checks
      saved.troubled()
      await eventually(() => checks > before)
      await clock.advance(15_000)
    }
    expect(warned()).toHaveLength(5)
    isLocked = false
    await clock.advance(31_000)
    await eventually(() => offered.length === 1)
    await saved.stop()
    expect(warned()).toHaveLength(5)
  })

  it.each([
    ['absent', 'no saved state yet', async () => undefined],
    ['torn', 'ignoring the saved state', async () => writeFileSync(await save(), 'nonsense')],
  ])(
    'reads a file once that cannot be served, however often the source fails: %s',
    async (_, text, spoil) => {
      await spoil()
      const { saved, said } = rig()
      saved.begin()
      saved.troubled()
      await eventually(() => said(text).length === 1)
      await new Promise(resolve => setImmediate(resolve))
      saved.troubled()
      await saved.stop()
      expect(said(text)).toHaveLength(1)
    },
  )

  it.each<[string, string, (path: string) => void, StateOwner]>([
    [
      'torn',
      'its checksum does not match',
      path => writeFileSync(path, readFileSync(path).subarray(0, 300)),
      OWNER,
    ],
    ['foreign', 'it is not a saved state of kprobe', path => writeFileSync(path, 'key: value'), OWNER],
    ['node', 'it is of the node "here"', () => undefined, { ...OWNER, node: 'other' }],
    ['cluster', 'another certificate authority', () => undefined, { ...OWNER, authorities: ['bb'] }],
    ['permissions', 'run chmod go-w', () => chmodSync(folder, 0o777), OWNER],
  ])('refuses a file by name, once, and goes on: %s', async (reason, text, spoil, owner) => {
    spoil(await save())
    const { saved, clock, lines, said, offered, metrics } = rig({ owner })
    saved.begin()
    saved.troubled()
    await eventually(() => said('ignoring the saved state').length === 1)
    await clock.advance(600_000)
    expect(lines).toHaveLength(1)
    expect(lines[0]).toMatchObject({ level: 'error', reason, file: join(folder, 'kprobe.state') })
    expect(lines[0]?.msg).toContain(text)
    expect(offered).toEqual([])
    expect(await metrics.text()).toContain(`kprobe_saved_state_refused_total{reason="${reason}"} 1`)
  })

  it('reports once that it cannot save, and once that it can again', async () => {
    chmodSync(folder, 0o777)
    const { saved, clock, lines, said, intake, metrics } = rig()
    intake.complete = true
    saved.synced(STATE)
    // The disk is real, and time is not.
    const later = (isSo: () => boolean) =>
      eventually(async () => {
        await clock.advance(10_000)
        return isSo()
      })
    const failures = async () => /outcome="failed"\} (\d+)/.exec(await metrics.text())?.[1] ?? 0
    await eventually(async () => {
      await clock.advance(10_000)
      return Number(await failures()) > 1
    })
    expect(lines).toHaveLength(1)
    expect(said('cannot save the state')).toHaveLength(1)
    chmodSync(folder, 0o700)
    await later(() => said('the state can be saved again').length === 1)
    expect(await metrics.text()).toMatch(/^kprobe_saved_state_saves_total\{outcome="failed"\} \d+$/m)
  })
})
