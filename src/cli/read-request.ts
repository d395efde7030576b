import { readConfigFile } from '../config/config-file.ts'
import type { FlagSpec } from '../config/flag.ts'
import { loadConfig, type RunRequest } from '../config/load-config.ts'
import type { Io } from './io.ts'
import { usageErrors, usageWarnings } from './usage-errors.ts'

export interface RequestOptions {
  /** The command's name, for messages. */
  readonly command: string
  /** Its flags besides those of `run`. */
  readonly extra: readonly FlagSpec[]
  /** It has nothing to do with the kernel. */
  readonly modeless?: boolean
}

/**
 * What a command that takes the arguments of `kprobe run` is asked for; or its exit code, once everything that is wrong
 * with them was told.
 */
export async function readRequest(
  argv: readonly string[],
  io: Io,
  { command, ...options }: RequestOptions,
): Promise<RunRequest | number> {
  const parsed = await loadConfig(argv, { hostName: io.hostName, ...options, readFile: readConfigFile })
  if (parsed.kind === 'errors') return usageErrors(io, command, parsed.errors)
  usageWarnings(io, command, parsed.value.warnings)
  return parsed.value
}
