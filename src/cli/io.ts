import type { HelpPage } from '../config/help.ts'

/** What a command may touch of the process around it. */
export interface Io {
  /** Standard output: what the command was asked for. */
  readonly out: (text: string) => void
  /** Standard error: everything else. */
  readonly err: (text: string) => void
  /** Aborted when standard output cannot be written any more, with the error as its reason. */
  readonly outLost: AbortSignal
  /** Of standard output: bytes that nobody has taken yet. */
  readonly outBacklogBytes: () => number
  /** Standard output is a terminal, and NO_COLOR is not set. */
  readonly colour: boolean
  /** Standard output is a terminal: somebody watches. */
  readonly terminal: boolean
  /** Aborted by SIGINT, SIGTERM and SIGQUIT, with the name of the signal as its reason. */
  readonly signal: AbortSignal
  /** Width of the terminal; undefined when there is none. */
  readonly columns?: number | undefined
  /** Runs `run` at each of these signals, which end the process otherwise, until the result is called. */
  readonly on: (signal: 'SIGHUP' | 'SIGUSR2', run: () => void) => () => void
  readonly hostName: string
  readonly processId: number
}

/** Exit codes, the same for all commands. */
export const EXIT_FINE = 0
export const EXIT_FAILED = 1
export const EXIT_USAGE = 2
export const EXIT_DIFFERENT = 3

/** One sub-command. */
export interface Command {
  help(): HelpPage
  /** Gives the exit code. */
  run(argv: readonly string[], io: Io): Promise<number>
}
