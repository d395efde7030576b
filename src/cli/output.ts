import type { Io } from './io.ts'

/** Prints a value for machines. */
export async function writeDocument(value: unknown, format: 'json' | 'yaml', io: Io): Promise<void> {
  if (format === 'json') {
    io.out(`${JSON.stringify(value, undefined, 2)}\n`)
    return
  }
  const { stringify } = await import('yaml')
  io.out(stringify(value, { lineWidth: 0, aliasDuplicateObjects: false }))
}
