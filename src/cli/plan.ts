import { systemClock } from '../base/clock.ts'
import { count } from '../base/text.ts'
import { HELP_FLAG, MODEL_FLAGS, outputFlag, WITHOUT_EFFECT } from '../config/flags.ts'
import { helpText } from '../config/help.ts'
import type { PlanLine } from '../reconcile/dataplane.ts'
import { COMMITS_MAX } from '../reconcile/difference.ts'
import { type Command, EXIT_DIFFERENT, EXIT_FAILED, EXIT_FINE, type Io } from './io.ts'
import { kernelDifference } from './kernel-difference.ts'
import { loadOnce, refusalText } from './load.ts'
import { writeDocument } from './output.ts'
import { planLines } from './plan-text.ts'
import { readRequest } from './read-request.ts'
import { failureText, usageErrors } from './usage-errors.ts'

const OUTPUTS = ['text', 'json', 'yaml'] as const

export const command: Command = {
  help: () =>
    helpText({
      usage: 'kprobe plan --source=file:PATH [flags]',
      description:
        'Prints what `kprobe run` with the same flags would change in the kernel, object by object, and changes nothing.\n' +
        'Exits 0 when there is no difference and 3 when there is one.',
      details: [WITHOUT_EFFECT],
      flags: [...MODEL_FLAGS, outputFlag(OUTPUTS), HELP_FLAG],
    }),
  run,
}

async function run(argv: readonly string[], io: Io): Promise<number> {
  const request = await readRequest(argv, io, { command: 'plan', extra: [outputFlag(OUTPUTS)] })
  if (typeof request === 'number') return request
  const { config, extra } = request
  const output = extra.oneOf('output', OUTPUTS, 'text')
  if (extra.errors.length > 0) return usageErrors(io, 'plan', extra.errors)
  try {
    const { table } = await loadOnce(config, systemClock, io)
    for (const { refusals } of table.services.values())
      for (const refusal of refusals) io.err(refusalText(refusal))
    const { lines, complete } = await kernelDifference(config, table)
    if (output === 'text') printText(lines, io)
    else await writeDocument({ changes: lines.length, complete, objects: lines }, output, io)
    if (!complete) io.err(`there is more: only the first ${COMMITS_MAX} commits are listed\n`)
    return lines.length === 0 ? EXIT_FINE : EXIT_DIFFERENT
  } catch (error) {
    io.err(`kprobe plan: ${failureText(error)}\n`)
    return EXIT_FAILED
  }
}

function printText(lines: readonly PlanLine[], io: Io): void {
  for (const text of planLines(lines)) io.out(text)
  io.out(`${planSummary(lines)}\n`)
}

export function planSummary(lines: readonly PlanLine[]): string {
  if (lines.length === 0) return 'no difference: the kernel holds what the Services ask for'
  const services = new Set(lines.map(({ service }) => service))
  const isShared = services.delete(undefined)
  const whose = [
    ...(services.size > 0 ? [count(services.size, 'Service')] : []),
    ...(isShared ? ['what all share'] : []),
  ]
  return `${count(lines.length, 'change')} for ${whose.join(' and ')}`
}
