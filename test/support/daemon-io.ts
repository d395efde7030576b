import { systemClock } from '../../src/base/clock.ts'
import { createLog } from '../../src/base/log.ts'
import type { DaemonIo } from '../../src/daemon/io.ts'
import { OPTIONAL_PARTS } from '../../src/optional-parts.ts'

interface IoOptions {
  /** Takes the lines of the log. */
  readonly write: (line: string) => void
  readonly verbosity?: number
}

/** What a daemon of this process has where a test has nothing else in mind. */
export function daemonIo({ write, verbosity = 2 }: IoOptions) {
  return {
    log: createLog({ format: 'text', verbosity, destination: { write } }),
    clock: systemClock,
    wallMs: Date.now,
    build: { version: 'test', commit: '', date: '' },
    origins: { mode: 'default', nodeName: '--hostname-override' },
    listens: false,
    configz: () => ({}),
    random: () => 0.5,
    processId: 77,
    parts: OPTIONAL_PARTS,
    takeLock: () => Promise.resolve({ kind: 'held', release: () => Promise.resolve() }),
    synced: () => undefined,
    planned: () => undefined,
  } satisfies Omit<DaemonIo, 'signal' | 'openTransport'>
}
