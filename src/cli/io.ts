import type { HelpPage } from '../config/help.ts'

/** The parts of the process that a command may use. */
export interface Io {
  /** Standard output, for results. */
  readonly out: (text: string) => void
  /** Standard error, for everything else. */
  readonly err: (text: string) => void
  /** Aborted when standard output fails, with the error as its reason. */
  readonly outLost: AbortSignal
  /** Resolves when all text for standard output is written or lost, or `signal` is aborted. */
  readonly outWritten: () => Promise<void>
  /** Bytes of standard output that its reader has not read yet. */
  readonly outBacklogBytes: () => number
  /** Standard output is a terminal, and NO_COLOR is not set. */
  readonly color: boolean
  /** Standard output is a terminal. */
  readonly terminal: boolean
  /** Aborted by SIGINT, SIGTERM and SIGQUIT, with the name of the signal as its reason. */
  readonly signal: AbortSignal
  /** Width of the terminal; undefined when there is none. */
  readonly columns?: number | undefined
  /** Runs `run` at each of these signals, which otherwise end the process. The result ends this. */
  readonly on: (signal: 'SIGHUP' | 'SIGUSR2', run: () => void) => () => void
  readonly hostName: string
  readonly processId: number
}

/** Exit codes are the same for all commands. */
export const EXIT_FINE = 0
export const EXIT_FAILED = 1
export const EXIT_USAGE = 2
export const EXIT_DIFFERENT = 3

/** One subcommand. */
export interface Command {
  help(): HelpPage
  /** Runs the command. Gives the exit code. */
  run(argv: readonly string[], io: Io): Promise<number>
}
