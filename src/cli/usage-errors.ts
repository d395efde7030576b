import { oneLine } from '../base/text.ts'
import type { ConfigError } from '../config/flag.ts'
import { EXIT_USAGE, type Io } from './io.ts'

/** Prints every error once, with its flag. Gives the exit code. */
export function usageErrors(io: Io, command: string, errors: readonly ConfigError[]): number {
  const lines = new Set(
    errors.map(({ path, message }) => `kprobe ${command}: ${oneLine(`${path}: ${message}`)}\n`),
  )
  for (const line of lines) io.err(line)
  io.err(`see \`kprobe ${command} --help\`\n`)
  return EXIT_USAGE
}

/** Prints the warnings of a configuration. */
export function usageWarnings(io: Io, command: string, warnings: readonly string[]): void {
  for (const warning of warnings) io.err(`kprobe ${command}: ${oneLine(warning)}\n`)
}
