import { privilegeHint } from '../base/privilege.ts'
import { oneLine } from '../base/text.ts'
import type { ConfigError } from '../config/flag.ts'
import { EXIT_USAGE, type Io } from './io.ts'

/** Prints every error once, with its flag; gives the exit code. */
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

/** A failure that is no bug of ours, with its causes, on one line. */
export function failureText(error: unknown): string {
  const texts: string[] = []
  for (let at = error; at instanceof Error && texts.length < 5; at = at.cause)
    if (!texts.some(text => text.includes(at.message))) texts.push(at.message)
  const hint = privilegeHint(error)
  const text = texts.length === 0 ? String(error) : texts.join(': ')
  return hint === undefined ? text : `${text}; ${hint}`
}
