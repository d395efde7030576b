import { execFileSync } from 'node:child_process'
import { join } from 'node:path'
import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import { finish, type Steps } from '../../../../src/base/clock.ts'
import { Catalogue, type CatalogueChange, lookAt } from '../../../../src/source/file/catalogue.ts'
import type { ObjectEvent } from '../../../../src/source/file/read-objects.ts'
import { temporaryFolder } from '../../../support/folder.ts'
import { IS_QUICK } from '../../../support/runs.ts'
import { nodeIn } from './followed-files.ts'

type Content = Readonly<Record<string, string>>

function objects(content: Content): Map<string, ObjectEvent> {
  return new Map(
    Object.entries(content).map(([name, zone]) => {
      const value = nodeIn(name, zone)
      return [`Node/${name}`, { kind: 'Node', key: name, value }]
    }),
  )
}

/** Applies events as a reader would. */
function apply(known: Map<string, string>, events: readonly ObjectEvent[]): void {
  for (const event of events) {
    if (event.kind !== 'Node') continue
    if (event.value === undefined) known.delete(event.key)
    else known.set(event.key, event.value.zone)
  }
}

/** Runs to the end. Gives how often it offered to pause. */
function counted(steps: Steps<CatalogueChange>) {
  let pauses = 0
  let step = steps.next()
  for (; step.done !== true; step = steps.next()) pauses++
  return { pauses, change: step.value }
}

describe('Catalogue', () => {
  it('always amounts to: the first file by name that has an object decides', () => {
    const file = fc.constantFrom('a', 'b', 'c')
    const content = fc.dictionary(fc.constantFrom('x', 'y', 'z'), fc.constantFrom('1', '2'))
    fc.assert(
      fc.property(fc.array(fc.tuple(file, content)), steps => {
        const catalogue = new Catalogue()
        const files = new Map<string, Content>()
        const known = new Map<string, string>()
        for (const [name, next] of steps) {
          files.set(name, next)
          const { events } = finish(catalogue.put(name, objects(next)))
          const keys = events.map(event => event.key)
          expect(new Set(keys).size).toBe(keys.length)
          apply(known, events)
          const expected = Object.assign({}, ...['c', 'b', 'a'].map(each => files.get(each) ?? {}))
          expect(Object.fromEntries(known)).toEqual(expected)
          expect(catalogue.size).toBe(Object.keys(expected).length)
        }
      }),
    )
  })

  it('never loses an object because a file is gone, and never lets a gone file win', () => {
    const act = fc.oneof(
      fc.record({
        kind: fc.constant('put'),
        content: fc.dictionary(fc.constantFrom('x', 'y'), fc.constantFrom('1', '2')),
      }),
      fc.record({ kind: fc.constant('vanish'), content: fc.constant({}) }),
    )
    fc.assert(
      fc.property(fc.array(fc.tuple(fc.constantFrom('a', 'b', 'c'), act)), steps => {
        const catalogue = new Catalogue()
        const present = new Map<string, Content>()
        const known = new Map<string, string>()
        for (const [name, { kind, content }] of steps) {
          const before = new Set(known.keys())
          if (kind === 'put') present.set(name, content)
          else present.delete(name)
          apply(
            known,
            (kind === 'put' ? finish(catalogue.put(name, objects(content))) : catalogue.vanish(name)).events,
          )
          if (kind === 'vanish') for (const key of before) expect(known.has(key)).toBe(true)
          const decided = Object.assign({}, ...['c', 'b', 'a'].map(each => present.get(each) ?? {}))
          expect(Object.fromEntries(known)).toMatchObject(decided)
        }
      }),
    )
  })

  it('names a conflict when it begins, and not again', () => {
    const catalogue = new Catalogue()
    finish(catalogue.put('b', objects({ x: '1' })))
    expect(finish(catalogue.put('a', objects({ x: '2' }))).conflicts).toEqual([
      { id: 'Node/x', kept: 'a', ignored: 'b' },
    ])
    expect(finish(catalogue.put('b', objects({ x: '3' })))).toEqual({ events: [], conflicts: [] })
  })

  it('says nothing about a file that says the same again', () => {
    const catalogue = new Catalogue()
    finish(catalogue.put('a', objects({ x: '1' })))
    expect(finish(catalogue.put('a', objects({ x: '1' })))).toEqual({ events: [], conflicts: [] })
  })

  it.skipIf(IS_QUICK)('offers to pause while it takes a large file, new, unchanged and emptied', () => {
    const many = () => objects(Object.fromEntries(Array.from({ length: 20_000 }, (_, n) => [`o${n}`, '1'])))
    const catalogue = new Catalogue()
    for (const [content, events] of [
      [many(), 20_000],
      [many(), 0],
      [new Map(), 20_000],
    ] as const) {
      const { pauses, change } = counted(catalogue.put('a', content))
      expect(pauses).toBeGreaterThan(20)
      expect(change.events).toHaveLength(events)
    }
  })

  it('looks at no object of other files when one changes', () => {
    const catalogue = new Catalogue()
    const many = Array.from({ length: 2_000 }, (_, n) => [`o${n}`, '1'])
    finish(catalogue.put('a', objects(Object.fromEntries(many))))
    finish(catalogue.put('b', objects({ x: '1' })))
    const { pauses, change } = counted(catalogue.put('b', objects({ x: '2' })))
    expect(pauses).toBe(0)
    expect(change.events).toHaveLength(1)
  })
})

it('a FIFO is neither a folder nor a file to look at', async () => {
  const path = join(temporaryFolder(), 'fifo')
  execFileSync('mkfifo', [path])
  await expect(lookAt(path)).rejects.toThrow('not a regular file')
})
