import { finishInSlices, type Slicing } from '../base/clock.ts'
import { errorOf } from '../base/errors.ts'
import { compareTexts } from '../base/text.ts'
import type { FrontendTable } from '../model/frontend.ts'
import { type Dataplane, generationOf, type Observation, type Plan, type PlanLine } from './dataplane.ts'

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
  lines.sort((a, b) => compareTexts(a.service ?? '', b.service ?? ''))
  return { lines, complete }
}

export interface DryRunOptions<P> {
  /** Gets each plan instead of the kernel. */
  readonly planned: (plan: P) => void
  /** The kernel cannot be read (no privilege, say): the plans start from nothing. */
  readonly unreadable: (error: Error) => void
}

/**
 * A plane that writes nothing. It reads the kernel once, so that the first plan is the true difference, and from then on
 * pretends that every plan was committed.
 */
export function dryRun<State, P extends Plan<State>>(
  plane: Dataplane<State, P>,
  options: DryRunOptions<P>,
): Dataplane<State, P> {
  let pretended: State | undefined
  let commits = 0
  return {
    name: plane.name,
    empty: plane.empty,
    render: (frontends, render) => plane.render(frontends, render),
    diff: (from, to) => plane.diff(from, to),
    async observe(): Promise<Observation<State>> {
      pretended ??= await readOnce(plane, options)
      return { state: pretended, generation: generationOf(commits) }
    },
    commit(plan) {
      // It may throw: then nothing was committed.
      options.planned(plan)
      pretended = plan.after
      commits++
      return Promise.resolve({
        outcome: 'committed',
        generation: generationOf(commits),
        foreign: false,
        refusals: [],
        bytes: 0,
        messages: 0,
        durationMs: 0,
      })
    },
    generation: () => generationOf(commits),
    watchWriters: () => () => undefined,
    cleanup: () => Promise.resolve(),
  }
}

async function readOnce<State, P extends Plan<State>>(
  plane: Dataplane<State, P>,
  options: DryRunOptions<P>,
): Promise<State> {
  try {
    return (await plane.observe()).state
  } catch (error) {
    options.unreadable(errorOf(error))
    return plane.empty
  }
}
