import { slicingOf, systemClock } from '../base/clock.ts'
import { oneLine } from '../base/text.ts'
import type { Config } from '../config/config.ts'
import { KERNEL, withPlane } from '../daemon/open.ts'
import type { FrontendTable } from '../model/frontend.ts'
import { type Difference, differenceOf, type PlanLine } from '../reconcile/dataplane.ts'

/**
 * Computes what `run` would change in this machine's kernel, in the configured mode. Throws if the mode cannot run
 * here.
 */
export async function kernelDifference(config: Config, table: FrontendTable): Promise<Difference> {
  return await withPlane<Difference>({ config, clock: systemClock, sockets: KERNEL }, ({ plane }) =>
    differenceOf(plane, table, slicingOf(systemClock)),
  )
}

const SIGNS: Readonly<Record<PlanLine['verb'], string>> = { add: '+', change: '~', remove: '-' }
const LINES_PER_TEXT = 1_000

/** Formats a plan as text: a heading for each Service, a line for each object. Gives texts of many lines. */
export function* planLines(lines: Iterable<PlanLine>): Generator<string> {
  let text: string[] = []
  let heading: string | undefined
  for (const line of lines) {
    const { service } = line
    const title = service === undefined ? 'shared by all Services' : `Service ${oneLine(service)}`
    if (title !== heading) text.push(`${title}:\n`)
    heading = title
    text.push(`  ${planLine(line)}\n`)
    if (text.length < LINES_PER_TEXT) continue
    yield text.join('')
    text = []
  }
  if (text.length > 0) yield text.join('')
}

/** Formats one operation: `+ element ip kube-proxy ...`. */
export function planLine({ verb, object }: Pick<PlanLine, 'verb' | 'object'>): string {
  return `${SIGNS[verb]} ${oneLine(object)}`
}
