import { describe, expect, it } from 'vitest'
import type { SourceEvent } from '../../../../src/model/snapshot.ts'
import { Batcher } from '../../../../src/source/kube/kube-source.ts'
import { settle } from '../../../support/fake-clock.ts'

function event(key: string): SourceEvent {
  return { kind: 'Service', key, value: undefined }
}

/** A taker that takes a batch when told to. */
function slowTaker() {
  const batches: string[][] = []
  const pending: { readonly done: () => void; readonly fail: (error: Error) => void }[] = []
  const batcher = new Batcher<SourceEvent>({ breathe: () => new Promise(resolve => setImmediate(resolve)) })
  batcher.start(batch => {
    batches.push(batch.map(each => ('key' in each ? each.key : '')))
    return new Promise((done, fail) => pending.push({ done, fail }))
  })
  return { batcher, batches, pending }
}

describe('batcher', () => {
  it('reports a failure to the callers whose events it concerns, and continues', async () => {
    const { batcher, batches, pending } = slowTaker()
    const first = batcher.put([event('a')])
    await settle()
    const second = batcher.put([event('b')])
    pending[0]?.fail(new Error('no'))
    await expect(first).rejects.toThrow('no')
    await settle()
    await settle()
    pending[1]?.done()
    await second
    expect(batches).toEqual([['a'], ['b']])
  })

  it('hands on nothing empty, and nothing once it is closed', async () => {
    const { batcher, batches, pending } = slowTaker()
    await batcher.put([])
    const first = batcher.put([event('a')])
    await settle()
    const second = batcher.put([event('b')])
    batcher.close()
    pending[0]?.done()
    await first
    await second
    expect(batches).toEqual([['a']])
  })
})
