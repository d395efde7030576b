import { systemClock } from '../base/clock.ts'
import { takeLock } from '../base/instance-lock.ts'
import { createLog } from '../base/log.ts'
import { HELP_FLAG, RUN_FLAGS } from '../config/flags.ts'
import { helpText } from '../config/help.ts'
import { parseFlags } from '../config/parse-flags.ts'
import { runDaemon } from '../daemon/daemon.ts'
import { openNetfilter } from '../daemon/open.ts'
import type { Command, Io } from './io.ts'
import { planLines } from './plan-text.ts'
import { syncText } from './sync-text.ts'
import { usageErrors } from './usage-errors.ts'

export const command: Command = {
  help: () =>
    helpText({
      usage: 'kprobe run --source=file:PATH [flags]',
      description:
        'Keeps the kernel of this node as the Services ask, until SIGTERM or Ctrl-C. What was programmed stays in the\n' +
        'kernel when kprobe ends; `kprobe cleanup` removes it.',
      flags: [...RUN_FLAGS, HELP_FLAG],
    }),
  run,
}

async function run(argv: readonly string[], io: Io): Promise<number> {
  const parsed = parseFlags(argv, { hostName: io.hostName })
  if (parsed.kind === 'errors') return usageErrors(io, 'run', parsed.errors)
  const { config } = parsed.value
  const dryRun = config.backend === 'dry-run'
  const log = createLog({ format: config.logFormat, verbosity: config.verbosity })
  const outLost = () =>
    log.warn({ err: io.outLost.reason }, 'standard output is gone; Services are served without it')
  io.outLost.addEventListener('abort', outLost, { once: true })
  return await runDaemon(config, {
    log,
    clock: systemClock,
    random: Math.random,
    signal: io.signal,
    processId: io.processId,
    openTransport: openNetfilter,
    takeLock,
    synced: sync => {
      const text = syncText(sync, { colour: io.colour, dryRun })
      if (text !== '') io.out(text)
    },
    planned: plan => {
      for (const text of planLines(plan.describe())) io.out(text)
    },
  })
}
