import type { Io } from './io.ts'

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
