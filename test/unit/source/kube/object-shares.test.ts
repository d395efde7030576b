import { afterEach, describe, expect, it } from 'vitest'
import { PartsRoom } from '../../../../src/model/parts-room.ts'
import { ObjectShares } from '../../../../src/source/kube/object-shares.ts'
import { settle } from '../../../support/fake-clock.ts'
import { ReflectorRig } from '../../../support/reflector-rig.ts'
import { service, type Written } from '../../../support/scripted-api.ts'

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
        if (shares.admits(key)) shares.added(key)
        else return number
      }
      return count
    }
    expect(take('large', 1_000)).toBe(100)
    expect(take('small', 30)).toBe(30)
    expect(shares.isCut('large/1000')).toBe(true)
    expect([...shares.cut]).toEqual(['large'])
    expect(take('second', 1_000)).toBeLessThanOrEqual(50)
    expect(shares.hasRoom).toBe(false)
    for (let number = 0; number < 90; number++) shares.removed(`large/${number}`)
    expect(shares.hasRoom).toBe(true)
  })
})

describe('objects without number', () => {
  afterEach(() => rig.reflector.stop())

  it.each([true, false])(
    'F151: are left out of a list, and others are not; streamed: %s',
    async streaming => {
      rig = new ReflectorRig({ partsRoom: new PartsRoom(PARTS), streaming })
      const objects = [...of('large', 0, 30), ...of('small', 0, 4)]
      if (streaming) {
        await rig.start()
        const watch = rig.api.take().watch()
        watch.added(...objects).listed('100')
        await settle()
      } else await rig.watching(objects, 100)
      expect([numberOf('large'), numberOf('small')]).toEqual([MAX, 4])
      expect(rig.refusals).toEqual([
        {
          object: 'Namespace large',
          field: '',
          value: '',
          reason:
            'has more Services than its share of those that this process may hold; those that came last are not used; ' +
            'delete some, or give the process a higher memory limit',
        },
      ])
    },
  )

  it('F151: that come while it watches are left out, and what becomes of them is of no account', async () => {
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

  it('F151: are listed again once there is room, and refused no longer', async () => {
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

  it('F151: are no reason to list again and again', async () => {
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
})
