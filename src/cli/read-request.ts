import { readConfigFile } from '../config/config-file.ts'
import type { FlagSpec } from '../config/flag.ts'
import type { FlagReader } from '../config/flag-reader.ts'
import { loadConfig, type RunRequest } from '../config/load-config.ts'
import type { Io } from './io.ts'
import { usageErrors, usageWarnings } from './usage-errors.ts'

export interface RequestOptions {
  /** The name of the command, for messages. */
  readonly command: string
  /** Flags of the command besides those of `run`. */
  readonly extra: readonly FlagSpec[]
  /** The command does not use the kernel. */
  readonly modeless?: boolean
  /** Checks the command's own flags even if other flags are invalid. Reports errors to the reader. */
  readonly check?: (reader: FlagReader) => Promise<unknown>
}

/**
 * Reads the arguments of a command that accepts those of `kprobe run`. Reports all errors, and gives the exit code
 * then.
 */
export async function readRequest(
  argv: readonly string[],
  io: Io,
  { command, check, ...options }: RequestOptions,
): Promise<RunRequest | number> {
  const parsed = await loadConfig(argv, {
    hostName: io.hostName,
    env: process.env,
    ...options,
    readFile: readConfigFile,
  })
  if (parsed.kind === 'errors') {
    const { errors, extra } = parsed
    if (extra !== undefined) await check?.(extra)
    return usageErrors(io, command, [...errors, ...(extra?.errors ?? [])])
  }
  usageWarnings(io, command, parsed.value.warnings)
  return parsed.value
}
