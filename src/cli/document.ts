import { stringify } from 'yaml'
import { type FlagSpec, flag } from '../config/flag.ts'
import type { Io } from './io.ts'

export const OUTPUTS = ['text', 'json', 'yaml'] as const

type DocumentFormat = 'json' | 'yaml'

/** The flag of a command that prints a document in these formats, the first of which is the default. */
export function outputFlag(formats: readonly string[]): FlagSpec {
  const [first = ''] = formats
  return flag(`-o, --output FORMAT = ${first}`, formats.join(', '), { choices: formats })
}

export function isDocument(output: string): output is DocumentFormat {
  return output === 'json' || output === 'yaml'
}

export async function writeDocument(value: unknown, format: DocumentFormat, io: Io): Promise<void> {
  if (format === 'json') io.out(`${JSON.stringify(value, undefined, 2)}\n`)
  else io.out(stringify(value, { lineWidth: 0, aliasDuplicateObjects: false }))
}
