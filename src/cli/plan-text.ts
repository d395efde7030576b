import { oneLine } from '../base/text.ts'
import type { PlanLine } from '../reconcile/dataplane.ts'

const SIGNS: Readonly<Record<PlanLine['verb'], string>> = { add: '+', change: '~', remove: '-' }
/** Lines joined into one write. */
const LINES_PER_TEXT = 1_000

/** A plan for people: a heading for each Service, a line for each object. Gives texts of many lines. */
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

/** `+ element ip kube-proxy ...`. */
export function planLine({ verb, object }: Pick<PlanLine, 'verb' | 'object'>): string {
  return `${SIGNS[verb]} ${oneLine(object)}`
}
