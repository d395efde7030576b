import { describe, expect, it } from 'vitest'
import { chunksOf, complaintsOf } from './seeds.ts'

/** The other half of the seeds, on another processor. */
const CHUNKS = chunksOf(1, 2)

describe('whatever goes wrong, the kernel holds in the end what the API server says', () => {
  it.skipIf(CHUNKS.length === 0).each(CHUNKS)('seeds $from to $to', async chunk => {
    expect((await complaintsOf(chunk)).join('\n')).toBe('')
  })

  it('is asked of as many seeds as there are to be', () => {
    expect(chunksOf(0, 2).length - CHUNKS.length).toBeOneOf([0, 1])
  })
})
