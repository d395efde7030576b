import { finish, type Steps } from '../../base/steps.ts'
import type { Committed } from './commit.ts'
import type { IpvsPlan } from './plan.ts'
import type { IpvsState } from './state.ts'

interface RemovalOptions {
  /** What is ours, read from the kernel. */
  readonly look: () => Promise<IpvsState>
  readonly diff: (from: IpvsState) => Steps<IpvsPlan>
  readonly commit: (plan: IpvsPlan) => Promise<Committed>
}

/** Looks and removals; what others put into our sets meanwhile makes another one necessary. */
const TRIES = 8

/**
 * Removes all that is ours, in the order in which a plan removes things; the device only if nobody else's address is on
 * it. Throws, in the kernel's words, when something cannot be removed.
 */
export async function removeAll({ look, diff, commit }: RemovalOptions): Promise<void> {
  for (let tries = 1; tries <= TRIES; tries++) {
    const plan = finish(diff(await look()))
    if (plan.empty) return
    const { outcome, refusals } = await commit(plan)
    if (outcome !== 'refused') continue
    const [first] = refusals
    throw new Error(`remove what is ours: ${first?.error.message ?? outcome}`, { cause: first?.error })
  }
  throw new Error(`remove what is ours: objects remained after each of ${TRIES} tries`)
}
