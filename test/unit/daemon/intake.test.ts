import { beforeEach, describe, expect, it } from 'vitest'
import { parseIp } from '../../../src/base/ip.ts'
import { Intake } from '../../../src/daemon/intake.ts'
import type { Snapshot, SourceEvent } from '../../../src/model/snapshot.ts'
import type { Source, SourceHandlers } from '../../../src/source/source.ts'
import { FakeClock } from '../../support/fake-clock.ts'
import { eventsOf, service, slice } from '../model/objects.ts'

/** A source that says what the test says. */
class HandSource implements Source {
  handlers: SourceHandlers | undefined
  stopped = false
  readonly status = { missing: ['services'], heardMs: undefined, trouble: undefined }

  start(handlers: SourceHandlers): Promise<void> {
    this.handlers = handlers
    return Promise.resolve()
  }

  stop(): Promise<void> {
    this.stopped = true
    return Promise.resolve()
  }

  async tell(...objects: readonly unknown[]): Promise<void> {
    await this.handlers?.events(eventsOf(objects))
  }

  async events(...events: readonly SourceEvent[]): Promise<void> {
    await this.handlers?.events(events)
  }

  synced(): void {
    this.handlers?.synced()
  }
}

let passed: Snapshot[]
let intake: Intake
let source: HandSource

beforeEach(async () => {
  passed = []
  intake = new Intake({
    clock: new FakeClock(),
    changed: snapshot => passed.push(snapshot),
    handlers: { refusals: () => undefined, problem: () => undefined },
  })
  source = new HandSource()
  await intake.follow(source)
})

const names = (snapshot: Snapshot | undefined) => [...(snapshot?.services.keys() ?? [])].sort()

describe('Intake', () => {
  it('passes nothing on before the source has told everything', async () => {
    await source.tell(service('a'))
    expect([passed.length, intake.complete]).toEqual([0, false])
    source.synced()
    expect(passed.map(names)).toEqual([['ns/a']])
    await source.tell(service('b'))
    expect(passed.map(names)).toEqual([['ns/a'], ['ns/a', 'ns/b']])
  })

  it('waits for the addresses of this machine where they matter, and names them as missing', async () => {
    intake.awaitIps()
    await source.tell(service('a'))
    source.synced()
    expect([passed.length, intake.status?.missing]).toEqual([0, ['services', 'addresses of this machine']])
    intake.takeIps([parseIp('192.0.2.1') ?? ''])
    expect(passed.map(names)).toEqual([['ns/a']])
    expect(intake.status?.missing).toEqual(['services'])
  })

  it('keeps what is known while another source takes over, and then lets go of what is gone', async () => {
    await source.tell(service('a'), service('b'), slice('a-1', 'a', ['10.0.0.1']))
    source.synced()
    const before = passed.at(-1)
    const next = new HandSource()
    await intake.follow(next)
    expect(source.stopped).toBe(true)
    await next.tell(service('b'), service('c'))
    expect(passed).toHaveLength(1)
    next.synced()
    const after = passed.at(-1)
    expect(names(after)).toEqual(['ns/b', 'ns/c'])
    expect(after?.sliceByKey.size).toBe(0)
    expect(after?.services.get('ns/b')).toBe(before?.services.get('ns/b'))
    expect(after?.number).toBeGreaterThan(before?.number ?? 0)
    await next.events({ kind: 'Service', key: 'ns/c', value: undefined })
    expect(names(passed.at(-1))).toEqual(['ns/b'])
  })

  it('keeps a batch that was under way when the source that took over became complete', async () => {
    await source.tell(service('a'))
    source.synced()
    const next = new HandSource()
    await intake.follow(next)
    await next.tell(service('a'))
    const taking = next.tell(service('b'))
    next.synced()
    await taking
    expect(names(passed.at(-1))).toEqual(['ns/a', 'ns/b'])
  })

  it('forgets what a source has told that did not get to its end before another took over', async () => {
    intake.takeIps([parseIp('192.0.2.1') ?? ''])
    await source.tell(service('a'), service('gone'))
    const next = new HandSource()
    await intake.follow(next)
    await next.tell(service('a'))
    next.synced()
    expect(passed.map(names)).toEqual([['ns/a']])
    expect(passed[0]?.localIps).toHaveLength(1)
  })

  it('keeps what the Node was when it goes, and tells load balancers to keep away', async () => {
    const keeping = new Intake({
      clock: new FakeClock(),
      keepsNode: true,
      changed: snapshot => passed.push(snapshot),
      handlers: { refusals: () => undefined, problem: () => undefined },
    })
    const node = {
      apiVersion: 'v1',
      kind: 'Node',
      metadata: { name: 'here' },
      status: { addresses: [{ type: 'InternalIP', address: '192.0.2.1' }] },
    }
    await keeping.follow(source)
    await source.tell(node)
    source.synced()
    const known = passed.at(-1)?.node
    expect(known?.eligible).toBe(true)
    await source.events({ kind: 'Node', key: 'here', value: undefined })
    expect(passed.at(-1)?.node).toEqual({ ...known, eligible: false, deleted: true })
    const next = new HandSource()
    await keeping.follow(next)
    next.synced()
    expect(passed.at(-1)?.node).toEqual({ ...known, eligible: false, deleted: true })
    await next.tell(node)
    expect(passed.at(-1)?.node).toEqual(known)
  })

  it('numbers what it repeats anew, even when a batch is taken meanwhile', async () => {
    await source.tell(service('a'))
    source.synced()
    const taking = source.tell(service('b'))
    intake.repeat()
    await taking
    const numbers = passed.map(({ number }) => number)
    expect(new Set(numbers).size).toBe(numbers.length)
    expect([...numbers].sort((a, b) => a - b)).toEqual(numbers)
    expect(names(passed.at(-1))).toEqual(['ns/a', 'ns/b'])
  })
})
