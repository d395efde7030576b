import { beforeEach, describe, expect, it } from 'vitest'
import { parseIp } from '../../../src/base/ip.ts'
import { Intake } from '../../../src/daemon/intake.ts'
import { type LeftOut, PartsRoom } from '../../../src/model/object-budget.ts'
import { EMPTY_SNAPSHOT, type Snapshot, type SourceEvent } from '../../../src/model/snapshot.ts'
import type { Source, SourceHandlers } from '../../../src/source/source.ts'
import { ip } from '../../support/addresses.ts'
import { FakeClock, settle } from '../../support/fake-clock.ts'
import { endpoint, eventsOf, service, slice, snapshotOf } from '../model/objects.ts'

/** A source that says what the test says. */
class HandSource implements Source {
  handlers: SourceHandlers | undefined
  stopped = false
  readonly rereads: (readonly string[])[] = []
  readonly status = { missing: ['services'], heardMs: undefined, trouble: undefined }

  start(handlers: SourceHandlers): Promise<void> {
    this.handlers = handlers
    return Promise.resolve()
  }

  stop(): Promise<void> {
    this.stopped = true
    return Promise.resolve()
  }

  reread(objects: readonly LeftOut[]): void {
    this.rereads.push(objects.map(({ kind, key }) => `${kind}/${key}`))
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
    handlers: { refusals: () => undefined, problem: () => undefined },
  })
  source = new HandSource()
  intake.deliverTo({ offer: snapshot => passed.push(snapshot) })
  await intake.follow(source)
})

const names = (snapshot: Snapshot | undefined) => [...(snapshot?.services.keys() ?? [])].sort()

describe('Intake', () => {
  it('waits for the addresses of this machine where they matter, and names them as missing', async () => {
    intake.awaitIps()
    await source.tell(service('a'))
    source.synced()
    expect([passed.length, intake.status?.missing]).toEqual([0, ['services', 'addresses of this machine']])
    intake.takeIps([parseIp('192.0.2.1') ?? ''])
    expect(passed.map(names)).toEqual([['ns/a']])
    expect(intake.status?.missing).toEqual(['services'])
  })

  it('lets the source wait until another Snapshot can be programmed, but not to its end', async () => {
    let open = (): void => undefined
    const paced = () => new Promise<void>(resolve => (open = resolve))
    intake.deliverTo({ offer: snapshot => passed.push(snapshot), paced })
    await source.tell(service('a'))
    source.synced()
    let taken = 0
    void source.tell(service('b')).then(() => taken++)
    await settle()
    expect([passed.map(names), taken]).toEqual([[['ns/a'], ['ns/a', 'ns/b']], 0])
    open()
    await settle()
    expect(taken).toBe(1)
    void source.tell(service('c')).then(() => taken++)
    await settle()
    await intake.stop()
    await settle()
    expect(taken).toBe(2)
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
      handlers: { refusals: () => undefined, problem: () => undefined },
    })
    const node = {
      apiVersion: 'v1',
      kind: 'Node',
      metadata: { name: 'here' },
      status: { addresses: [{ type: 'InternalIP', address: '192.0.2.1' }] },
    }
    keeping.deliverTo({ offer: snapshot => passed.push(snapshot) })
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

describe('an Intake that may hold so many parts', () => {
  const PARTS_MAX = 500
  const wide = (name: string, count: number) =>
    service(name, { ports: Array.from({ length: count }, (_, i) => ({ name: `p${i}`, port: 80 + i })) })
  const full = (name: string, of: string, count: number) =>
    slice(
      name,
      of,
      Array.from({ length: count }, (_, i) => endpoint(`10.0.${i >> 8}.${i & 255}`)),
    )
  let clock: FakeClock
  let refused: string[][]

  beforeEach(async () => {
    clock = new FakeClock()
    refused = []
    intake = new Intake({
      clock,
      partsRoom: new PartsRoom(PARTS_MAX),
      handlers: {
        refusals: list => refused.push(list.map(({ location, refusal }) => `${location}: ${refusal.object}`)),
        problem: () => undefined,
      },
    })
    source = new HandSource()
    intake.deliverTo({ offer: snapshot => passed.push(snapshot) })
    await intake.follow(source)
  })

  const leftOut = () =>
    [...intake.snapshot.services.values(), ...intake.snapshot.sliceByKey.values()].flatMap(
      ({ key, leftOut: parts }) => (parts === undefined ? [] : [key]),
    )

  it('F150: passes on what fits, and never what does not', async () => {
    await source.tell(wide('large', 300), wide('web', 150), full('web-1', 'web', 100))
    source.synced()
    expect(leftOut()).toEqual(['ns/large'])
    await source.tell(wide('larger', 400))
    expect(passed.every(({ services }) => (services.get('ns/larger')?.ports.length ?? 0) === 0)).toBe(true)
    expect(leftOut().sort()).toEqual(['ns/large', 'ns/larger'])
  })

  it('F150: reports slices that are left out and belong to no Service, after what the source refuses', async () => {
    await source.tell(full('a-1', 'a', 300), full('b-1', 'b', 250))
    source.handlers?.refusals([
      { location: 'services', refusal: { object: 'Service ns/x', field: '', value: '', reason: '' } },
    ])
    await clock.advance(1_000)
    expect(refused.at(-1)).toEqual(['services: Service ns/x', 'endpointslices: EndpointSlice ns/a-1'])
    await source.tell(service('a'))
    await clock.advance(1_000)
    expect(refused.at(-1)).toEqual(['services: Service ns/x'])
  })

  it('F150: has objects read again once there is room, in growing distances', async () => {
    await source.tell(wide('large', 300), full('a-1', 'a', 250))
    source.synced()
    await clock.advance(10_000)
    expect([leftOut(), source.rereads]).toEqual([['ns/large'], []])
    await source.events({ kind: 'EndpointSlice', key: 'ns/a-1', value: undefined })
    await clock.advance(1_000)
    expect(source.rereads).toEqual([['Service/ns/large']])
    await clock.advance(100_000)
    expect(source.rereads).toHaveLength(3)
    await clock.advance(10 * 3_600_000)
    expect(source.rereads.length).toBeLessThan(20)
    const asked = source.rereads.length
    await source.tell(wide('large', 300))
    await clock.advance(10 * 3_600_000)
    expect([leftOut(), source.rereads.length]).toEqual([[], asked])
  })

  it('F150: counts the objects of a source that takes over by themselves', async () => {
    await source.tell(wide('a', 300))
    source.synced()
    expect(intake.parts).toBe(304)
    const next = new HandSource()
    await intake.follow(next)
    await next.tell(wide('a', 300), wide('b', 100))
    // Those of the source before are held as well.
    expect(intake.parts).toBe(304 + 304 + 104)
    next.synced()
    expect(intake.parts).toBe(304 + 104)
    expect(leftOut()).toEqual([])
    await next.tell(wide('c', 200))
    expect(leftOut()).toEqual(['ns/a'])
  })
})

describe('saved objects that stand in for a source', () => {
  const saved = snapshotOf([
    service('kept'),
    service('gone'),
    slice('kept-1', 'kept', [endpoint('10.1.0.1')]),
  ])
  const agree = () => Promise.resolve(true)

  it('are confirmed by a Snapshot of its own when the list says the same', async () => {
    const same = snapshotOf([service('kept')])
    await intake.standIn(same, agree)
    await source.tell(service('kept'))
    source.synced()
    expect(passed).toHaveLength(2)
    expect(passed[1]?.services).toBe(passed[0]?.services)
    expect(passed[1] && intake.isStale(passed[1])).toBe(false)
  })

  it('are not needed once the source is complete, also when it gets so while the kernel is read', async () => {
    const allowed = async () => {
      await source.tell(service('a'))
      source.synced()
      return true
    }
    expect(await intake.standIn(saved, allowed)).toBe('complete')
    expect(passed.map(names)).toEqual([['ns/a']])
    expect(passed[0] && intake.isStale(passed[0])).toBe(false)
  })

  it('wait for the addresses of this machine, and for leave to serve', async () => {
    intake.awaitIps()
    expect(await intake.standIn(saved, agree)).toBe('early')
    intake.takeIps([ip('192.0.2.1')])
    const asked: Snapshot[] = []
    const deny = (snapshot: Snapshot) => Promise.resolve(asked.push(snapshot) === 0)
    expect(await intake.standIn(saved, deny)).toBe('denied')
    expect(asked[0]?.localIps).toEqual([ip('192.0.2.1')])
    expect(passed).toHaveLength(0)
  })

  it('cost nothing while the addresses are unknown, and do not stand where they become so', async () => {
    intake.awaitIps()
    const untouched: Snapshot = {
      ...EMPTY_SNAPSHOT,
      get services(): never {
        throw new Error('counted')
      },
    }
    expect(await intake.standIn(untouched, agree)).toBe('early')
    intake.ignoreIps()
    const restarted = () => {
      intake.awaitIps()
      return Promise.resolve(true)
    }
    expect(await intake.standIn(saved, restarted)).toBe('early')
    expect(passed).toHaveLength(0)
  })

  it('go only after a second read where the first list lacks most of them', async () => {
    const many = Array.from({ length: 20 }, (_, at) => service(`s-${at}`))
    const reads: (() => void)[] = []
    const careful = Object.assign(new HandSource(), {
      confirm: () => new Promise<void>(resolve => void reads.push(resolve)),
    })
    await intake.follow(careful)
    await intake.standIn(snapshotOf(many), agree)
    await careful.tell(service('s-1'))
    careful.synced()
    expect(passed).toHaveLength(1)
    await careful.tell(service('s-2'))
    for (const read of reads) read()
    await new Promise(resolve => setImmediate(resolve))
    expect(passed).toHaveLength(2)
    expect(names(passed.at(-1))).toEqual(['ns/s-1', 'ns/s-2'])
  })
})
