import { expect, it } from 'vitest'
import { RelaySimulation } from '../../support/relay-simulation.ts'
import { runs } from '../../support/runs.ts'

/** Two minutes of one processor. */
const SEEDS = 2_000
const SHARE = 1 / 20
const BATCH = 100
const COUNT = runs(SEEDS, SHARE)

it.each(Array.from({ length: Math.ceil(COUNT / BATCH) }, (_, batch) => batch * BATCH + 1))(
  'every node ends where a direct watcher ends, and hears of nothing that did not change: seeds from %i',
  async first => {
    for (let seed = first; seed < Math.min(first + BATCH, COUNT + 1); seed++) {
      const { trace, complaints } = await new RelaySimulation(seed).run()
      expect(complaints, `seed ${seed}\n${trace.join('\n')}`).toEqual([])
    }
  },
)
