import { execFileSync } from 'node:child_process'
import { join } from 'node:path'
import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import type { NodeInfo } from '../../../../src/model/snapshot.ts'
import { Catalogue, lookAt } from '../../../../src/source/file/catalogue.ts'
import type { ObjectEvent } from '../../../../src/source/file/read-objects.ts'
import { temporaryFolder } from '../../../support/folder.ts'

type Content = Readonly<Record<string, string>>

function objects(content: Content): Map<string, ObjectEvent> {
  return new Map(
    Object.entries(content).map(([name, zone]) => {
      const value: NodeInfo = { name, zone, ips: [], podCidrs: [], uid: '', eligible: true, refusals: [] }
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
          catalogue.put(name, objects(next))
          const { events } = catalogue.changes()
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
          if (kind === 'put') catalogue.put(name, objects(content))
          else catalogue.vanish(name)
          apply(known, catalogue.changes().events)
          if (kind === 'vanish') for (const key of before) expect(known.has(key)).toBe(true)
          const decided = Object.assign({}, ...['c', 'b', 'a'].map(each => present.get(each) ?? {}))
          expect(Object.fromEntries(known)).toMatchObject(decided)
        }
      }),
    )
  })

  it('names a conflict when it begins, and not again', () => {
    const catalogue = new Catalogue()
    catalogue.put('b', objects({ x: '1' }))
    catalogue.put('a', objects({ x: '2' }))
    expect(catalogue.changes().conflicts).toEqual([{ id: 'Node/x', kept: 'a', ignored: 'b' }])
    catalogue.put('b', objects({ x: '3' }))
    expect(catalogue.changes()).toEqual({ events: [], conflicts: [] })
  })
})

it('a FIFO is neither a folder nor a file to look at', async () => {
  const path = join(temporaryFolder(), 'fifo')
  execFileSync('mkfifo', [path])
  await expect(lookAt(path)).rejects.toThrow('not a regular file')
})
