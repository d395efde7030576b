import { beforeEach, describe, expect, it } from 'vitest'
import { parseIp } from '../../../src/base/ip.ts'
import { Intake } from '../../../src/daemon/intake.ts'
import { EMPTY_SNAPSHOT, type Snapshot, type SourceEvent } from '../../../src/model/snapshot.ts'
import type { Source, SourceHandlers } from '../../../src/source/source.ts'
import { ip } from '../../support/addresses.ts'
import { settle } from '../../support/fake-clock.ts'
import { endpoint, eventsOf, service, slice, snapshotOf } from '../model/objects.ts'

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

const NOTHING = { refusals: () => undefined, problem: () => undefined }

beforeEach(async () => {
  passed = []
  intake = new Intake({ handlers: NOTHING })
  source = new HandSource()
  intake.deliverTo({ offer: snapshot => passed.push(snapshot) })
  await intake.follow(source)
})

const names = (snapshot: Snapshot | undefined) => [...(snapshot?.services.keys() ?? [])].sort()

describe('Intake', () => {
  it('does not keep the refusals of a source that another one replaces', async () => {
    const refusal = { object: 'Service ns/a', field: '', value: '', reason: 'too new' }
    const reports: number[] = []
    intake = new Intake({ handlers: { ...NOTHING, refusals: list => reports.push(list.length) } })
    await intake.follow(source)
    source.handlers?.refusals([{ location: 'services', refusal }])
    const next = new HandSource()
    await intake.follow(next)
    next.synced()
    expect([intake.refused, reports]).toEqual([[], [1, 0]])
  })

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

  it('has the status of a source from its takeover on, before the one before it has stopped', async () => {
    await source.tell(service('a'))
    source.synced()
    Object.assign(source, { status: { missing: [], heardMs: 7, trouble: undefined } })
    expect(intake.status?.heardMs).toBe(7)
    const following = intake.follow(new HandSource())
    expect(intake.status).toMatchObject({ missing: ['services'], heardMs: undefined })
    await following
    expect(source.stopped).toBe(true)
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
    const keeping = new Intake({ keepsNode: true, handlers: NOTHING })
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

describe('saved objects that stand in for a source', () => {
  const saved = snapshotOf([
    service('kept'),
    service('gone'),
    slice('kept-1', 'kept', [endpoint('10.1.0.1')]),
  ])
  const agree = () => Promise.resolve(true)

  it('are offered at once, and replaced in one change by the first list, with what is equal as it was', async () => {
    await source.tell(service('new'))
    expect(await intake.standIn(saved, agree)).toBe('stands')
    const stale = passed.at(-1)
    expect(passed.map(names)).toEqual([['ns/gone', 'ns/kept']])
    expect(stale && intake.isStale(stale)).toBe(true)
    await source.tell(service('kept'), slice('kept-1', 'kept', [endpoint('10.1.0.1')]))
    expect(passed).toHaveLength(1)
    source.synced()
    const after = passed.at(-1)
    expect(passed.map(names)).toEqual([
      ['ns/gone', 'ns/kept'],
      ['ns/kept', 'ns/new'],
    ])
    expect(after?.services.get('ns/kept')).toBe(stale?.services.get('ns/kept'))
    expect(after?.sliceByKey.get('ns/kept-1')).toBe(stale?.sliceByKey.get('ns/kept-1'))
    expect([after && intake.isStale(after), stale && intake.isStale(stale)]).toEqual([false, true])
  })

  it('are confirmed by a Snapshot of its own when the list says the same', async () => {
    const same = snapshotOf([service('kept')])
    await intake.standIn(same, agree)
    await source.tell(service('kept'))
    source.synced()
    expect(passed).toHaveLength(2)
    expect(passed[1]?.services).toBe(passed[0]?.services)
    expect(passed[1] && intake.isStale(passed[1])).toBe(false)
  })

  it('lose nothing to a batch that was under way when they came', async () => {
    const taking = source.tell(service('new'))
    const standing = intake.standIn(saved, agree)
    await Promise.all([taking, standing])
    expect(names(passed.at(-1))).toEqual(['ns/gone', 'ns/kept'])
    await source.tell(service('kept'))
    source.synced()
    expect(names(passed.at(-1))).toEqual(['ns/kept', 'ns/new'])
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
