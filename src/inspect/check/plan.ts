import { count } from '../../base/text.ts'
import { OUTPUTS, outputFlag, writeDocument } from '../../cli/document.ts'
import { EXIT_DIFFERENT, EXIT_FINE, type Io, planLines } from '../../cli/io.ts'
import { type FlagSpec, flag } from '../../config/flag.ts'
import { findMode } from '../../modes/registry.ts'
import { COMMITS_MAX, type PlanLine } from '../../reconcile/dataplane.ts'
import { refusalText, withLoaded } from '../load.ts'
import { modelCommand } from '../model-request.ts'
import { leftOutText, type PossibleDifference, possibleDifference } from './requirements.ts'

const FLAGS: readonly FlagSpec[] = [
  flag('--summary', 'print how much would change, without the objects'),
  outputFlag(OUTPUTS),
]

export const command = modelCommand({
  name: 'plan',
  description:
    'Prints what `kprobe run` would change in the kernel, object by object, and changes nothing.\n' +
    'Exits 0 when there is no difference and 3 when there is one.',
  flags: FLAGS,
  read: reader => ({ output: reader.oneOf('output', OUTPUTS, 'text'), isSummary: reader.bool('summary') }),
  async run({ output, isSummary }, request, io) {
    const listed = { ...request, allWarnings: !isSummary }
    const changes = await withLoaded(listed, io, async ({ table, refusedObjects }, { progress, warn }) => {
      // A source that is read here has warned of them already.
      if (request.daemon !== undefined) for (const refusal of refusedObjects) warn(refusalText(refusal))
      for (const { refusals } of table.services.values())
        for (const refusal of refusals) warn(refusalText(refusal))
      progress.begin('comparing with the kernel')
      const { lines, complete, leftOut } = await possibleDifference(request.config, table)
      const shown = isSummary ? planCounts(lines) : { objects: lines }
      if (output !== 'text')
        await writeDocument({ changes: lines.length, complete, leftOut, ...shown }, output, io)
      else {
        printText({ lines, leftOut }, isSummary, io)
        const advice = findMode(request.config.proxyMode).advice?.(request.config, table.services.size)
        if (advice !== undefined && !isSummary) io.err(`kprobe plan: ${advice}\n`)
      }
      if (!complete) warn(`only the first ${COMMITS_MAX} commits are listed; there are more`)
      return lines.length
    })
    return changes === 0 ? EXIT_FINE : EXIT_DIFFERENT
  },
})

function printText(
  { lines, leftOut }: Omit<PossibleDifference, 'complete'>,
  isSummary: boolean,
  io: Io,
): void {
  for (const text of isSummary ? [] : planLines(lines)) io.out(text)
  const { added, changed, removed } = planCounts(lines)
  const verbs =
    isSummary && lines.length > 0 ? `: ${added} added, ${changed} changed, ${removed} removed` : ''
  io.out(`${leftOutText({ leftOut })}${planSummary(lines)}${verbs}\n`)
}

/** Counts the changes of a plan: Services, shared rules, and objects by verb. */
export function planCounts(lines: readonly PlanLine[]) {
  const services = new Set(lines.map(({ service }) => service))
  const shared = services.delete(undefined)
  const of = (verb: PlanLine['verb']) => lines.filter(line => line.verb === verb).length
  return {
    services: services.size,
    shared,
    added: of('add'),
    changed: of('change'),
    removed: of('remove'),
  }
}

export function planSummary(lines: readonly PlanLine[]): string {
  if (lines.length === 0) return 'no difference: the kernel holds the wanted state'
  const { services, shared } = planCounts(lines)
  const whose = [...(services > 0 ? [count(services, 'Service')] : []), ...(shared ? ['shared rules'] : [])]
  return `${count(lines.length, 'change')} for ${whose.join(' and ')}`
}
