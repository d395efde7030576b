import { describe, expect, it } from 'vitest'
import { StateSaver } from '../../../../src/daemon/saved/state-saver.ts'
import { applyEvents, type Snapshot } from '../../../../src/model/snapshot.ts'
import { ip } from '../../../support/addresses.ts'
import { FakeClock } from '../../../support/fake-clock.ts'
import { eventsOf, service, snapshotOf } from '../../model/objects.ts'

const OWNER = { node: 'here', proxy: '', server: 'https://192.0.2.1', authorities: [] }

/** A saver with a disk in memory; `advance` takes seconds. */
function rig({ failing = (): boolean => false } = {}) {
  const clock = new FakeClock()
  const writes: string[] = []
  /** Bytes of each file that was written, whole or not. */
  const tries: number[] = []
  const confirms: number[] = []
  const failures: string[] = []
  let heardMs: number | undefined = 0
  const saver = new StateSaver({
    clock,
    wallMs: () => 1_000_000 + clock.nowMs(),
    file: {
      write: async chunks => {
        const bytes = Buffer.concat([...chunks])
        tries.push(bytes.length)
        if (failing()) throw new Error('ENOSPC')
        writes.push(bytes.toString())
        return bytes.length
      },
      confirm: async wallMs => void confirms.push(wallMs),
    },
    owner: () => Promise.resolve(OWNER),
    heardMs: () => heardMs,
    saved: () => undefined,
    failed: error => failures.push(String(error)),
  })
  const advance = (s: number) => clock.advance(s * 1_000)
  const hear = () => {
    heardMs = clock.nowMs()
  }
  /** Another source follows, which has not answered. */
  const reconnect = () => {
    heardMs = undefined
  }
  return { saver, writes, tries, confirms, failures, advance, hear, reconnect }
}

const start = snapshotOf([service('web')])
/** More than 128 KiB a second carry in the 10 s between two small ones. */
const large = snapshotOf(Array.from({ length: 10_000 }, (_, at) => service(`name-of-a-service-${at}`)))
const next = (snapshot: Snapshot, name: string) => applyEvents(snapshot, eventsOf([service(name)]))

describe('StateSaver', () => {
  it('saves a second after the first sync, and then at most every 10 s, however many changes come', async () => {
    const { saver, writes, advance } = rig()
    saver.offer(start)
    await advance(0.9)
    expect(writes).toHaveLength(0)
    await advance(0.2)
    expect(writes).toHaveLength(1)
    let snapshot = start
    for (let at = 0; at < 100; at++) {
      snapshot = next(snapshot, `s-${at}`)
      saver.offer(snapshot)
      await advance(0.1)
    }
    expect(writes.length).toBeLessThanOrEqual(2)
    await advance(11)
    expect(writes.at(-1)).toContain('s-99')
    const count = writes.length
    await advance(60)
    expect(writes).toHaveLength(count)
  })

  it('writes nothing for a Snapshot with the same objects, and its last one at the end', async () => {
    const { saver, writes, advance } = rig()
    saver.offer(start)
    await advance(2)
    saver.offer({ ...start, number: 7, localIps: [ip('192.0.2.1')] })
    await advance(100)
    expect(writes).toHaveLength(1)
    saver.offer(next(start, 'last'))
    await saver.stop()
    expect(writes.at(-1)).toContain('last')
    expect(writes).toHaveLength(2)
  })

  it('tries again after 10 s when the disk is full, and reports each failure to its reader', async () => {
    let isFull = true
    const { saver, writes, failures, advance } = rig({ failing: () => isFull })
    saver.offer(start)
    await advance(12)
    expect(failures).toEqual(['Error: ENOSPC', 'Error: ENOSPC'])
    isFull = false
    await advance(10)
    expect(writes).toHaveLength(1)
  })

  it.each([false, true])(
    'rests after a large state: 128 KB a second on average; disk full: %s',
    async isFull => {
      const { saver, tries, advance } = rig({ failing: () => isFull })
      saver.offer(large)
      await advance(2)
      const seconds = (tries[0] ?? 0) / 128_000
      expect(seconds).toBeGreaterThan(15)
      saver.offer(next(large, 'more'))
      await advance(seconds - 2)
      expect(tries).toHaveLength(1)
      await advance(4)
      expect(tries).toHaveLength(2)
    },
  )

  it('neither saves nor confirms what it has while another source has not delivered everything', async () => {
    const { saver, writes, confirms, advance, hear, reconnect } = rig()
    saver.offer(start)
    await advance(2)
    saver.offer(next(start, 'unsaved'))
    reconnect()
    saver.offer(next(start, 'read-back'))
    await advance(300)
    expect([writes.length, confirms]).toEqual([1, [1_000_000]])
    hear()
    await advance(70)
    expect([writes.length, confirms.length]).toEqual([1, 1])
    saver.offer(start)
    await advance(2)
    expect([writes.length, confirms.length]).toEqual([2, 2])
    reconnect()
    saver.offer(next(start, 'last'))
    await saver.stop()
    expect(writes).toHaveLength(2)
  })
})
