import { stringify } from 'yaml'
import { errorOf } from '../base/errors.ts'
import { oneLine } from '../base/text.ts'
import { type FlagReader, type FlagSpec, flag, quote } from '../config/flag.ts'
import { type Io, tableText } from './io.ts'
import {
  fillTemplate,
  type JsonPath,
  type JsonPathTemplate,
  parsePath,
  parseTemplate,
  select,
  valuesText,
} from './jsonpath.ts'

/** The formats of a command that prints one result. */
export const OUTPUTS = ['text', 'json', 'yaml'] as const

/** What a template selects of a document. */
export type JsonPathOutput = `jsonpath=${string}`

/** A format in which every document can be printed. */
type DocumentFormat = 'json' | 'yaml' | JsonPathOutput

const JSONPATH = 'jsonpath='

/**
 * The flag of a command that prints a document in these formats, the first of which is the default, or what a JSONPath
 * template selects of it.
 */
export function outputFlag(formats: readonly string[], more: readonly string[] = []): FlagSpec {
  return flag(
    `-o, --output FORMAT = ${formats[0] ?? ''}`,
    [...formats, 'jsonpath=TEMPLATE', ...more].join(', '),
    { choices: formats, check: reader => readOutput(reader, formats, formats[0] ?? '') },
  )
}

/** Reads the flag. Reports errors to the reader. */
export function readOutput<T extends string>(
  reader: FlagReader,
  formats: readonly T[],
  fallback: T,
): T | JsonPathOutput {
  const text = reader.text('output') ?? fallback
  if (!isJsonPath(text)) return reader.oneOf('output', formats, fallback)
  checked(reader, () => parseTemplate(text.slice(JSONPATH.length)))
  return text
}

/** Whether the output is a document, in contrast to a text for people. */
export function isDocument(output: string): output is DocumentFormat {
  return output === 'json' || output === 'yaml' || isJsonPath(output)
}

function isJsonPath(output: string): output is JsonPathOutput {
  return output.startsWith(JSONPATH)
}

function checked<T>(reader: FlagReader, parse: () => T, flag = '--output'): T | undefined {
  try {
    return parse()
  } catch (error) {
    reader.fail(flag, errorOf(error).message)
    return undefined
  }
}

/** Prints a value for machines. */
export async function writeDocument(value: unknown, format: DocumentFormat, io: Io): Promise<void> {
  if (isJsonPath(format)) {
    const template: JsonPathTemplate = parseTemplate(format.slice(JSONPATH.length))
    // A generator of the document has to become a list, as in JSON.
    const text = fillTemplate(template, JSON.parse(JSON.stringify(value)), io.terminal ? oneLine : undefined)
    io.out(io.terminal && !text.endsWith('\n') ? `${text}\n` : text)
    return
  }
  if (format === 'json') {
    io.out(`${JSON.stringify(value, undefined, 2)}\n`)
    return
  }
  io.out(stringify(value, { lineWidth: 0, aliasDuplicateObjects: false }))
}

/** A column of `-o custom-columns=HEADING:PATH,…`. */
export interface Column {
  readonly heading: string
  readonly path: JsonPath
}

export const CUSTOM_COLUMNS = 'custom-columns='

/** Reads `custom-columns=HEADING:PATH,…`. Reports errors to the reader. */
export function readColumns(reader: FlagReader, output: string): readonly Column[] {
  // Commas in brackets or braces are a part of their path.
  const specs = output.slice(CUSTOM_COLUMNS.length).split(/,(?![^[{]*[\]}])/)
  return specs.flatMap(spec => {
    const [, heading = '', path = ''] = /^([^:]+):(.+)$/s.exec(spec) ?? []
    if (heading !== '') return [{ heading, path: checked(reader, () => parsePath(path)) ?? [] }]
    reader.fail('--output', `${quote(spec)} in custom-columns is not written HEADING:PATH`)
    return []
  })
}

/** Formats rows with these columns; `<none>` where a row has no value. */
export function columnsText(
  rows: readonly unknown[],
  columns: readonly Column[],
  io: Pick<Io, 'color'>,
): string {
  const cells = rows.map(row =>
    columns.map(({ path }) => {
      const values = select(path, row)
      return values.length === 0 ? '<none>' : valuesText(values, ',')
    }),
  )
  return tableText(
    columns.map(({ heading }) => heading),
    cells,
    io,
  )
}

/** Reads the path of --sort-by; undefined without the flag. Reports errors to the reader. */
export function readSortPath(reader: FlagReader): JsonPath | undefined {
  const text = reader.text('sort-by') ?? ''
  return text === '' ? undefined : checked(reader, () => parsePath(text), '--sort-by')
}

/** Sorts by the first value of a path: numbers by size, texts with the numbers in them by size; rows without one first. */
export function sortedBy<T>(rows: readonly T[], path: JsonPath): T[] {
  const keyed = rows.map(row => ({ row, key: select(path, row)[0] }))
  return keyed.sort((a, b) => compareKeys(a.key, b.key)).map(({ row }) => row)
}

const NATURAL = new Intl.Collator('en', { numeric: true })

function compareKeys(a: unknown, b: unknown): number {
  if (a === undefined || b === undefined) return Number(a !== undefined) - Number(b !== undefined)
  if (typeof a === 'number' && typeof b === 'number') return a - b
  return NATURAL.compare(valuesText([a]), valuesText([b]))
}
