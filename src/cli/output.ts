import { oneLine } from '../base/text.ts'
import type { Io } from './io.ts'

/** Prints warnings after the results: in one terminal or pipe, those would push them out of sight. */
export async function writeWarnings(warnings: readonly string[], io: Io): Promise<void> {
  if (warnings.length === 0) return
  await io.outWritten()
  for (const warning of warnings) io.err(`${oneLine(warning)}\n`)
}

/** Prints a value for machines. */
export async function writeDocument(value: unknown, format: 'json' | 'yaml', io: Io): Promise<void> {
  if (format === 'json') {
    io.out(`${JSON.stringify(value, undefined, 2)}\n`)
    return
  }
  // The package is CommonJS: only a module of kprobe's own keeps its export names in a bundle that loads it late.
  const { yamlText } = await import('./yaml-text.ts')
  io.out(yamlText(value))
}
