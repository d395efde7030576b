import { systemClock } from '../base/clock.ts'
import { slicingOf } from '../base/steps.ts'
import type { Config } from '../config/config.ts'
import { KERNEL, withPlane } from '../daemon/open.ts'
import type { FrontendTable } from '../model/frontend.ts'
import { type Difference, differenceOf } from '../reconcile/difference.ts'

/** What `run` would change in the kernel of this machine, in the mode of the configuration. Throws when it cannot serve. */
export async function kernelDifference(config: Config, table: FrontendTable): Promise<Difference> {
  return await withPlane<Difference>({ config, clock: systemClock, sockets: KERNEL }, ({ plane }) =>
    differenceOf(plane, table, slicingOf(systemClock)),
  )
}
