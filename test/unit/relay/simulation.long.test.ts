import { expect, it } from 'vitest'
import { RelaySimulation } from '../../support/relay-simulation.ts'
import { runs } from '../../support/runs.ts'

const SEEDS = 240

it('every node ends where a direct watcher ends, and hears of nothing that did not change', async () => {
  for (let seed = 1; seed <= runs(SEEDS); seed++) {
    const { trace, complaints } = await new RelaySimulation(seed).run()
    expect(complaints, `seed ${seed}\n${trace.join('\n')}`).toEqual([])
  }
})
