import { expect, test } from 'vitest'
import { change, computeIn } from '../../support/pipeline.ts'
import { BY_RULES } from '../../support/players.ts'
import { LOCAL_IPS, loadScenarios } from '../../support/scenario.ts'
import { expectedLine, type Labels, tracedLine } from '../../support/scenario-outcome.ts'

test('every row of cluster-ip.yaml', () => {
  const scenario = loadScenarios().find(({ file }) => file === 'cluster-ip.yaml')
  if (scenario === undefined) throw new Error('no such scenario')
  const { mode, tracerOf } = BY_RULES
  const labels: Labels = new Map()
  let computed = computeIn(mode, scenario.config, LOCAL_IPS)
  for (const step of scenario.steps) {
    computed = change(computed, step)
    const tracing = { tracer: tracerOf(computed.state), labels, random: () => 0, dynamic: new Map() }
    for (const row of step.rows) expect(tracedLine(row, tracing), step.title).toBe(expectedLine(row))
  }
})
