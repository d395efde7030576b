import { errorOf } from '../base/failure-text.ts'
import { type Dataplane, generationOf, type Observation, type Plan } from './dataplane.ts'

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
      pretended = plan.after
      commits++
      options.planned(plan)
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
