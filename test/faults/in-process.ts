import { createLog } from '../../src/base/log.ts'
import { runDaemon } from '../../src/daemon/daemon.ts'
import type { DaemonIo } from '../../src/daemon/io.ts'
import { daemonIo } from '../support/daemon-io.ts'
import { configFrom } from '../support/parse-flags.ts'
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
  const running = runDaemon(configFrom(flags, undefined, 'test-node'), {
    ...daemonIo({ write }),
    log: createLog({ format: 'json', verbosity: 0, destination: { write } }),
    random: Math.random,
    processId: process.pid,
    openTransport: openNetfilter,
    ...io,
  })
  return await within(running, {
    limitMs: 60_000,
    describe: () => 'the daemon of this process has not ended',
  })
}
