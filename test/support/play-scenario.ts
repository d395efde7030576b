import { expect } from 'vitest'
import type { Dataplane, Plan } from '../../src/reconcile/dataplane.ts'
import type { Flow, Lab } from './lab/lab.ts'
import { type Computed, change, commitAll, computeIn, type Mode, type Stateful } from './pipeline.ts'
import { LOCAL_IPS, type PacketRow, type Scenario } from './scenario.ts'
import { expectedLine, flowOf as flowAtRandom, type Labels, seenLine } from './scenario-outcome.ts'

interface PlayOptions<State extends Stateful, P extends Plan<State>> {
  readonly mode: Mode<State>
  /** On the kernel of the lab's node. */
  readonly plane: Dataplane<State, P>
  /** What that kernel holds before the first step; nothing by default. */
  readonly before?: State
  readonly lab: Lab
  /** How many connections show where a packet of a row may end; by default those for endpoints taken at random. */
  readonly flowOf?: (row: PacketRow) => Flow
  readonly more?: MoreOfSteps
}

/** What a scenario has beside packets. */
export interface MoreOfSteps {
  /** Runs when the kernel has a step, before its packets. */
  readonly committed: (index: number, computed: Computed<Stateful>) => Promise<void>
  /** Endpoints that sticky labels come to mean. */
  readonly labels: Labels
}

/** Programs a scenario step by step, and sends its packets. */
export async function playSteps<State extends Stateful, P extends Plan<State>>(
  { config, steps }: Scenario,
  { mode, plane, before = plane.empty, lab, flowOf = flowAtRandom, more }: PlayOptions<State, P>,
): Promise<void> {
  let held = before
  let computed = computeIn(mode, config, LOCAL_IPS)
  const labels: Labels = more?.labels ?? new Map()
  for (const [index, step] of steps.entries()) {
    computed = change(computed, step)
    held = await commitAll(plane, held, computed.state)
    await more?.committed(index, computed)
    const outcomes = await lab.trace(step.rows.map(flowOf))
    const seen = step.rows.flatMap((row, index) => {
      const outcome = outcomes[index]
      return outcome === undefined ? [] : [seenLine(row, outcome, labels)]
    })
    expect(seen, step.title).toEqual(step.rows.map(expectedLine))
  }
}
