import { describe, expect, it } from 'vitest'
import { Progress } from '../../../src/inspect/load.ts'
import { FakeClock } from '../../support/fake-clock.ts'

function started() {
  const clock = new FakeClock()
  const said: string[] = []
  return { clock, said, progress: new Progress(clock, { err: text => said.push(text) }) }
}

describe('Progress', () => {
  it('says every 2 s how far a command is, from the first 2 s on, and nothing after its end', async () => {
    const { clock, said, progress } = started()
    progress.read(4_200)
    await clock.advance(1_999)
    expect(said).toEqual([])
    await clock.advance(1)
    progress.read(5_800)
    progress.begin('comparing with the kernel')
    await clock.advance(2_000)
    expect(said).toEqual([
      'reading the source: 4,200 objects so far\n',
      'comparing with the kernel (10,000 objects)\n',
    ])
    progress.end()
    await clock.advance(10_000)
    expect(said).toHaveLength(2)
    expect(clock.pending).toBe(0)
  })
})
