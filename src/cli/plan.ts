import { systemClock } from '../base/clock.ts'
import { finishInSlices } from '../base/steps.ts'
import { count } from '../base/text.ts'
import { HELP_FLAG, outputFlag, RUN_FLAGS } from '../config/flags.ts'
import { helpText } from '../config/help.ts'
import { parseFlags } from '../config/parse-flags.ts'
import { type OpenPlane, openNetfilter, openPlane } from '../daemon.ts'
import type { FrontendTable } from '../model/frontend.ts'
import type { PlanLine } from '../reconcile/dataplane.ts'
import { type Command, EXIT_DIFFERENT, EXIT_FAILED, EXIT_FINE, type Io } from './io.ts'
import { loadOnce, refusalText, slicingOf } from './load.ts'
import { writeDocument } from './output.ts'
import { planLines } from './plan-text.ts'
import { failureText, usageErrors } from './usage-errors.ts'

const OUTPUTS = ['text', 'json', 'yaml'] as const

export const command: Command = {
  help: () =>
    helpText({
      usage: 'kprobe plan --source=file:PATH [flags]',
      description:
        'Prints what `kprobe run` with the same flags would change in the kernel, object by object, and changes nothing.\n' +
        'Exits 0 when there is no difference and 3 when there is one.',
      flags: [...RUN_FLAGS, outputFlag(OUTPUTS), HELP_FLAG],
    }),
  run,
}

async function run(argv: readonly string[], io: Io): Promise<number> {
  const parsed = parseFlags(argv, { hostName: io.hostName, extra: [outputFlag(OUTPUTS)] })
  if (parsed.kind === 'errors') return usageErrors(io, 'plan', parsed.errors)
  const { config, extra } = parsed.value
  const output = extra.oneOf('output', OUTPUTS, 'text')
  if (extra.errors.length > 0) return usageErrors(io, 'plan', extra.errors)
  try {
    const { table } = await loadOnce(config, systemClock, io)
    for (const { refusals } of table.services.values())
      for (const refusal of refusals) io.err(refusalText(refusal))
    const opened = openPlane(config, systemClock, openNetfilter)
    const lines = await differences(opened, table)
    await opened.close()
    if (output === 'text') printText(lines, io)
    else await writeDocument({ changes: lines.length, objects: lines }, output, io)
    return lines.length === 0 ? EXIT_FINE : EXIT_DIFFERENT
  } catch (error) {
    io.err(`kprobe plan: ${failureText(error)}\n`)
    return EXIT_FAILED
  }
}

/** Commits that a difference may take: what a packet may still reach goes one commit later. */
const COMMITS_MAX = 8

async function differences({ plane }: OpenPlane, table: FrontendTable): Promise<PlanLine[]> {
  const slicing = slicingOf(systemClock)
  const { state } = await plane.observe()
  const wanted = await finishInSlices(plane.render(table, { base: state, without: new Set() }), slicing)
  const lines: PlanLine[] = []
  let from = state
  for (let commits = 1; commits <= COMMITS_MAX; commits++) {
    const plan = await finishInSlices(plane.diff(from, wanted), slicing)
    for (const line of plan.describe()) lines.push(line)
    if (plan.complete) break
    from = plan.after
  }
  return lines.sort((a, b) => compare(a.service ?? '', b.service ?? ''))
}

function compare(a: string, b: string): number {
  return a < b ? -1 : a > b ? 1 : 0
}

function printText(lines: readonly PlanLine[], io: Io): void {
  for (const text of planLines(lines)) io.out(text)
  const services = new Set(lines.map(({ service }) => service)).size
  if (lines.length === 0) io.out('no difference: the kernel holds what the Services ask for\n')
  else io.out(`${count(lines.length, 'change')} for ${count(services, 'Service')}\n`)
}
