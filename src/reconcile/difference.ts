import { finishInSlices, type Slicing } from '../base/steps.ts'
import type { FrontendTable } from '../model/frontend.ts'
import type { Dataplane, Plan, PlanLine } from './dataplane.ts'

export interface Difference {
  /** Grouped by Service. */
  readonly lines: readonly PlanLine[]
  /** False when even COMMITS_MAX commits would not do: the lines are those of the first ones. */
  readonly complete: boolean
}

/** Commits that a difference may take: what a packet may still reach goes one commit later. */
export const COMMITS_MAX = 8

/** What `run` would change in the kernel, which is read, not written. */
export async function differenceOf<State, P extends Plan<State>>(
  plane: Dataplane<State, P>,
  table: FrontendTable,
  slicing: Slicing,
): Promise<Difference> {
  const { state } = await plane.observe()
  const wanted = await finishInSlices(plane.render(table, { base: state, without: new Set() }), slicing)
  const lines: PlanLine[] = []
  let from = state
  let complete = false
  for (let commits = 1; commits <= COMMITS_MAX && !complete; commits++) {
    const plan = await finishInSlices(plane.diff(from, wanted), slicing)
    for (const line of plan.describe()) lines.push(line)
    complete = plan.complete
    from = plan.after
  }
  lines.sort((a, b) => compare(a.service ?? '', b.service ?? ''))
  return { lines, complete }
}

function compare(a: string, b: string): number {
  return a < b ? -1 : a > b ? 1 : 0
}
