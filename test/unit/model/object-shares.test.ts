import { afterEach, describe, expect, it } from 'vitest'
import { ObjectShares } from '../../../src/model/memory-shares.ts'
import { PartsRoom } from '../../../src/model/object-budget.ts'
import { settle } from '../../support/fake-clock.ts'
import { ReflectorRig } from '../../support/reflector-rig.ts'
import type { Written } from '../../support/scripted-api.ts'
import { service } from '../../support/scripted-api.ts'

/** Objects that a resource may have for PARTS parts. */
const MAX = 10
const PARTS = 8 * MAX
/** Until left-out objects may be read again. */
const REREAD_MS = 31_000

let rig: ReflectorRig

function of(namespace: string, first: number, count: number): Written[] {
  return Array.from({ length: count }, (_, index) => {
    const { metadata, ...object } = service(`s${first + index}`, 10 + first + index)
    return { ...object, metadata: { ...Object(metadata), namespace } }
  })
}

const at = (object: Written, resourceVersion: number): Written => ({
  ...object,
  metadata: { ...Object(object.metadata), resourceVersion: String(resourceVersion) },
})

const numberOf = (namespace: string) => [...rig.known.keys()].filter(key => key.startsWith(namespace)).length

describe('ObjectShares', () => {
  it('F151: counts what each namespace has, and cuts the one that has most', () => {
    const shares = new ObjectShares(100)
    const take = (namespace: string, count: number) => {
      for (let number = 0; number < count; number++) {
        const key = `${namespace}/${number}`
        if (!shares.admits(key)) {
          shares.leftOut(key)
          return number
        }
        shares.added(key)
      }
      return count
    }
    expect(take('large', 1_000)).toBe(100)
    expect(take('small', 30)).toBe(30)
    expect([...shares.cut]).toEqual(['large'])
    expect(take('second', 1_000)).toBe(36)
    expect(shares.hasRoom).toBe(false)
    for (let number = 0; number < 90; number++) shares.removed(`large/${number}`)
    expect(shares.hasRoom).toBe(true)
  })
})

describe('more objects than the limit', () => {
  afterEach(() => rig.reflector.stop())

  it.each([true, false])(
    'F151: a list leaves out those of the largest namespace; streamed: %s',
    async streaming => {
      rig = new ReflectorRig({ partsRoom: new PartsRoom(PARTS), streaming })
      const objects = [...of('large', 0, 30), ...of('small', 0, 4)]
      if (streaming) {
        await rig.start()
        const watch = rig.api.take().watch()
        watch.added(...objects).listed('100')
        await settle()
      } else await rig.watching(objects, 100)
      expect([numberOf('large'), numberOf('small')]).toEqual([6, 4])
      expect(rig.refusals).toEqual([
        {
          object: 'Namespace large',
          field: '',
          value: '',
          reason:
            'has its share of the 10 Services that this process may hold; further Services of the namespace are ignored; ' +
            'delete some, or give the process a higher memory limit',
        },
      ])
    },
  )

  it('F151: events of objects that are left out change nothing', async () => {
    rig = new ReflectorRig({ partsRoom: new PartsRoom(PARTS) })
    const watch = await rig.watching(of('small', 0, 4), 100)
    watch.added(...of('large', 100, 30))
    await settle()
    expect([numberOf('large'), numberOf('small')]).toEqual([6, 4])
    expect(rig.refusals).toHaveLength(1)
    for (const one of of('large', 120, 1)) watch.modified(one).deleted(at(one, 190))
    for (const one of of('large', 100, 1)) watch.modified(at(one, 200))
    watch.added(...of('small', 210, 1))
    await settle()
    expect([numberOf('large'), numberOf('small')]).toEqual([6, 5])
  })

  it('F151: the reflector lists again once there is room, and the refusal ends', async () => {
    rig = new ReflectorRig({ partsRoom: new PartsRoom(PARTS) })
    const watch = await rig.watching(of('large', 0, 12), 100)
    expect(numberOf('large')).toBe(MAX)
    watch.deleted(...of('large', 0, 3).map(object => at(object, 120)))
    await settle()
    rig.api.take().list(of('large', 3, 9), '130')
    await settle()
    expect(numberOf('large')).toBe(9)
    expect(rig.refusals).toEqual([])
    expect(rig.reasons()).toEqual(['start', 'room for objects left out'])
  })

  it('F151: the second list for room waits', async () => {
    rig = new ReflectorRig({ partsRoom: new PartsRoom(PARTS) })
    const all = of('large', 0, 30)
    let watch = await rig.watching(all, 100)
    for (const [number, object] of all.slice(0, 3).entries()) watch.deleted(at(object, 200 + number))
    await settle()
    rig.api.take().list(all.slice(3), '210')
    await settle()
    watch = rig.api.take().watch()
    expect(numberOf('large')).toBe(MAX)
    for (const [number, object] of all.slice(3, 6).entries()) watch.deleted(at(object, 220 + number))
    await settle()
    expect(rig.api.waiting()).toBe(0)
    await rig.clock.advance(REREAD_MS)
    watch.bookmark('230')
    await settle()
    expect(rig.requests.at(-1)).toMatch(/^list/)
  })

  it('F151: a list with new objects before the known ones adds nothing', async () => {
    rig = new ReflectorRig({ partsRoom: new PartsRoom(PARTS) })
    const known = of('large', 50, 10)
    let watch = await rig.watching(known, 100)
    for (let round = 1; round <= 3; round++) {
      watch.error(410, { reason: 'Expired' }).close()
      await settle()
      await rig.clock.advance(60_000)
      rig.api.take().list([...of('large', 10 * round, 10), ...known], String(100 + round))
      await settle()
      watch = rig.api.take().watch()
      await rig.clock.advance(2_000)
      expect(numberOf('large')).toBe(MAX)
    }
  })

  it('F151: a first list divides the limit equally, whatever namespace it names first', async () => {
    rig = new ReflectorRig({ partsRoom: new PartsRoom(8 * 40) })
    await rig.watching(
      ['a', 'b', 'c', 'd'].flatMap(namespace => of(namespace, 0, 30)),
      100,
    )
    expect(['a', 'b', 'c', 'd'].map(numberOf)).toEqual([10, 10, 10, 10])
  })

  it('F151: the refusal ends when the objects that were left out are deleted', async () => {
    rig = new ReflectorRig({ partsRoom: new PartsRoom(PARTS) })
    const watch = await rig.watching(of('large', 0, 12), 100)
    expect(rig.refusals).toHaveLength(1)
    for (const one of of('large', 10, 2)) watch.modified(at(one, 110)).deleted(at(one, 120))
    watch.bookmark('130')
    await settle()
    expect(rig.refusals).toEqual([])
    expect(numberOf('large')).toBe(MAX)
  })
})
