import { describe, expect, it } from 'vitest'
import { Collection } from '../../../src/relay/collection.ts'
import { FakeClock } from '../../support/fake-clock.ts'

function collectionAt(...revisions: readonly string[]): Collection {
  const collection = new Collection({
    typeUrl: 'type',
    clock: new FakeClock(),
    spacingMs: () => 0,
    identifier: () => 'cluster',
  })
  for (const revision of revisions) {
    collection.put(`of-${revision}`, { version: revision, resource: Buffer.from(revision) })
    collection.seal(revision)
  }
  return collection
}

describe('Collection: the position of a revision', () => {
  it('is none for a revision of the time before a restore, also once the new history is past it', () => {
    const collection = collectionAt('90', '100', '50')
    expect(collection.positionOf('80')).toBe('another')
    for (const revision of ['70', '85', '101', '110']) {
      collection.put('some', { version: revision, resource: Buffer.from(revision) })
      collection.seal(revision)
    }
    expect(collection.positionOf('80')).toBe('another')
    expect(collection.positionOf('100')).toBe('another')
    expect(collection.positionOf('50')).toBeTypeOf('number')
    expect(collection.positionOf('101')).toBe(collection.head - 1)
  })

  it('is none in the history of another cluster, whichever revisions it has', () => {
    const collection = collectionAt('90', '100')
    collection.seal('300', 'another-history')
    expect(collection.positionOf('95')).toBe('gone')
    expect(collection.positionOf('300')).toBe(collection.head)
  })
})
