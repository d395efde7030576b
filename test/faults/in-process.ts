import { systemClock } from '../../src/base/clock.ts'
import { createLog } from '../../src/base/log.ts'
import { runDaemon } from '../../src/daemon/daemon.ts'
import type { DaemonIo } from '../../src/daemon/io.ts'
import { parseFlags } from '../support/parse-flags.ts'
import { within } from '../support/patience.ts'
import { openNetfilter } from './kernel.ts'

export interface InProcess
  extends Pick<DaemonIo, 'signal' | 'takeLock'>,
    Partial<Pick<DaemonIo, 'openTransport'>> {
  readonly flags: readonly string[]
  /** Takes the lines of the log. */
  readonly write?: (text: string) => void
}

/** A daemon of this process on the real kernel, without servers; gives its exit code. */
export async function runHere({ flags, write = () => undefined, ...io }: InProcess): Promise<number> {
  const parsed = parseFlags(flags, { hostName: 'test-node' })
  if (parsed.kind === 'errors') throw new Error(parsed.errors.join())
  const running = runDaemon(parsed.value.config, {
    log: createLog({ format: 'json', verbosity: 0, destination: { write } }),
    clock: systemClock,
    wallMs: Date.now,
    build: { version: 'test', commit: '', date: '' },
    origins: { mode: 'default', nodeName: '--hostname-override' },
    listens: false,
    configz: () => ({}),
    random: Math.random,
    processId: process.pid,
    openTransport: openNetfilter,
    synced: () => undefined,
    planned: () => undefined,
    ...io,
  })
  return await within(running, {
    limitMs: 60_000,
    describe: () => 'the daemon of this process has not ended',
  })
}
