import { describe, expect, it } from 'vitest'
import { chunksOf, complaintsOf } from './seeds.ts'
import { runSeed } from './simulation.ts'

describe('whatever goes wrong, the kernel holds in the end what the API server says', () => {
  it.each(chunksOf(0, 2))('seeds $from to $to', async chunk => {
    expect((await complaintsOf(chunk)).join('\n')).toBe('')
  })
})

describe('a seed', () => {
  it('says all: two runs of it are the same, byte for byte', async () => {
    const [first, second] = [await runSeed(7), await runSeed(7)]
    expect(first.trace.length).toBeGreaterThan(50)
    expect(second.trace.join('\n')).toBe(first.trace.join('\n'))
  })

  it('is judged: what is missing in the kernel at the end does not go unseen', async () => {
    const seen: string[] = []
    const { complaints } = await runSeed(7, {
      beforeJudging: ({ space }) => {
        for (const { sets } of space.tables.values())
          for (const { name, elements } of sets.values())
            for (const key of [...elements.keys()].slice(0, 1)) {
              elements.delete(key)
              seen.push(name)
            }
      },
    })
    expect(seen.length).toBeGreaterThan(0)
    expect(complaints.filter(text => text.startsWith('INV-3')).length).toBeGreaterThanOrEqual(seen.length)
  })
})
