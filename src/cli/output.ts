import type { Io } from './io.ts'

/** Prints a value for machines. */
export async function writeDocument(value: unknown, format: 'json' | 'yaml', io: Io): Promise<void> {
  if (format === 'json') {
    io.out(`${JSON.stringify(value, undefined, 2)}\n`)
    return
  }
  // Only a module of our own keeps its names when the bundle loads it late: the package is CommonJS.
  const { yamlText } = await import('./yaml-text.ts')
  io.out(yamlText(value))
}
