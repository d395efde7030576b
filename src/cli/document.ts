import { stringify } from 'yaml'
import { errorOf } from '../base/errors.ts'
import { oneLine } from '../base/text.ts'
import { type FlagReader, type FlagSpec, flag, quote } from '../config/flag.ts'
import { type Io, tableText } from './io.ts'

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

/**
 * JSONPath templates as `kubectl get -o jsonpath` has them: text, and between braces paths, quoted texts, and
 * `{range PATH}…{end}`. A path has fields, `*`, `..`, indices, slices, unions of names and filters that compare one field.
 */
type JsonPathTemplate = readonly Part[]

type Part =
  | { readonly kind: 'text'; readonly text: string }
  | { readonly kind: 'path'; readonly path: JsonPath }
  | { readonly kind: 'range'; readonly path: JsonPath; readonly parts: readonly Part[] }

/** Steps from a value to the values that it selects. */
export type JsonPath = readonly Step[]

type Step = (value: unknown) => readonly unknown[]

/** Reads a template. Throws an Error that says what is wrong, and where. */
export function parseTemplate(text: string): JsonPathTemplate {
  const open: Part[][] = [[]]
  const ranges: JsonPath[] = []
  for (const { isCode, piece } of piecesOf(text)) {
    const parts = open.at(-1) ?? []
    const quoted = /^(?:"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')$/s.test(piece)
    if (!isCode) parts.push({ kind: 'text', text: piece })
    else if (quoted) parts.push({ kind: 'text', text: unescaped(piece.slice(1, -1)) })
    else if (/^range\s/.test(piece)) {
      ranges.push(parsePath(piece.slice('range'.length).trim()))
      open.push([])
    } else if (piece === 'end') {
      const path = ranges.pop()
      if (path === undefined) throw new Error('{end} without {range}')
      open.pop()
      open.at(-1)?.push({ kind: 'range', path, parts })
    } else parts.push({ kind: 'path', path: parsePath(piece) })
  }
  if (ranges.length > 0) throw new Error('{range} without {end}')
  return open[0] ?? []
}

/** Splits at braces; braces in quotes do not count. A text without braces is a path. */
function* piecesOf(text: string): Generator<{ readonly isCode: boolean; readonly piece: string }> {
  if (!text.includes('{')) {
    yield { isCode: true, piece: text.trim() }
    return
  }
  for (let at = 0; at < text.length; ) {
    const start = text.indexOf('{', at)
    if (start !== at) yield { isCode: false, piece: text.slice(at, start < 0 ? text.length : start) }
    if (start < 0) return
    const code = /^\{((?:"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'|[^{}"'])*)\}/s.exec(text.slice(start))
    if (code === null) throw new Error(`{ at character ${start + 1} is not closed`)
    yield { isCode: true, piece: (code[1] ?? '').trim() }
    at = start + code[0].length
  }
}

const ESCAPES: Readonly<Record<string, string>> = { n: '\n', t: '\t', r: '\r' }

function unescaped(text: string): string {
  return text.replace(/\\(.)/gs, (_, letter: string) => ESCAPES[letter] ?? letter)
}

const NAME = /^[\w/$-]+(?:\\\.[\w/$-]+)*/
const SLICE = /^(-?\d*):(-?\d*)(?::(\d+))?$/
const QUOTED_NAMES = /^(?:'[^']*'|"[^"]*")(?:\s*,\s*(?:'[^']*'|"[^"]*"))*$/
const FILTER = /^\?\(\s*@([^=!<>]*?)\s*(?:(==|!=|<=|>=|<|>)\s*(.+?)\s*)?\)$/s

/** Reads a path such as `.services[*].frontend`; the dot at its begin may be absent. Throws an Error for another text. */
function parsePath(text: string): JsonPath {
  const braced = /^\{(.*)\}$/s.exec(text)?.[1]?.trim() ?? text
  let rest = braced.replace(/^[$@]/, '')
  if (rest !== '' && !/^[.[]/.test(rest)) rest = `.${rest}`
  if (rest === '.') return []
  const steps: Step[] = []
  while (rest !== '') {
    const [step, length] = firstStep(rest, text)
    steps.push(step)
    rest = rest.slice(length)
  }
  if (steps.length === 0 && !/^[$@]/.test(braced)) throw new Error(`${JSON.stringify(text)} is not a path`)
  return steps
}

/** Gives the first step of a path, and its length. */
function firstStep(rest: string, whole: string): readonly [Step, number] {
  const wrong = () =>
    new Error(`${JSON.stringify(whole)} is not a path: ${JSON.stringify(rest)} cannot be parsed`)
  if (rest.startsWith('[')) {
    const end = endOfBrackets(rest)
    if (end < 0) throw wrong()
    const step = bracketStep(rest.slice(1, end).trim())
    if (step === undefined) throw wrong()
    return [step, end + 1]
  }
  if (rest.startsWith('..')) {
    // `..[0]` and `..*` select among all values below, too.
    if (/^\.\.[[*]/.test(rest)) return [descendants, rest[2] === '[' ? 2 : 1]
    const name = NAME.exec(rest.slice(2))?.[0]
    if (name === undefined) throw wrong()
    return [value => descendants(value).flatMap(fieldStep(plain(name))), 2 + name.length]
  }
  if (rest.startsWith('.*')) return [children, 2]
  if (rest.startsWith('.[')) return [value => [value], 1]
  const name = rest.startsWith('.') ? NAME.exec(rest.slice(1))?.[0] : undefined
  if (name === undefined) throw wrong()
  return [fieldStep(plain(name)), 1 + name.length]
}

function plain(name: string): string {
  return name.replaceAll('\\.', '.')
}

/** Gives the place of the bracket that closes the first one, outside of quotes; -1 for none. */
function endOfBrackets(text: string): number {
  let depth = 0
  let quote = ''
  for (const [at, letter] of [...text].entries()) {
    if (quote !== '') quote = letter === quote ? '' : quote
    else if (letter === '"' || letter === "'") quote = letter
    else if (letter === '[') depth++
    else if (letter === ']' && --depth === 0) return at
  }
  return -1
}

function bracketStep(inside: string): Step | undefined {
  if (inside === '*') return children
  if (/^-?\d+$/.test(inside))
    return value => (Array.isArray(value) ? value.slice(...oneAt(Number(inside))) : [])
  const slice = SLICE.exec(inside)
  if (slice !== null) return sliceStep(slice)
  if (QUOTED_NAMES.test(inside)) {
    const names = [...inside.matchAll(/'([^']*)'|"([^"]*)"/g)].map(([, one, two]) => one ?? two ?? '')
    return value => names.flatMap(name => fieldStep(name)(value))
  }
  const filter = FILTER.exec(inside)
  return filter === null ? undefined : filterStep(filter)
}

function oneAt(index: number): readonly [number, number | undefined] {
  return [index, index === -1 ? undefined : index + 1]
}

function sliceStep([, from = '', to = '', every = '1']: readonly string[]): Step {
  const end = to === '' ? undefined : Number(to)
  const step = Math.max(1, Number(every))
  return value =>
    Array.isArray(value) ? value.slice(Number(from), end).filter((_, index) => index % step === 0) : []
}

function filterStep([, left = '', operator, right = '']: readonly (string | undefined)[]): Step {
  const path = parsePath(`@${left}`)
  const wanted = literal(right)
  const holds = (item: unknown) => {
    const found = select(path, item)
    return operator === undefined ? found.length > 0 : found.some(each => compares(each, operator, wanted))
  }
  return value => children(value).filter(holds)
}

function literal(text: string): unknown {
  if (/^(?:'.*'|".*")$/s.test(text)) return text.slice(1, -1)
  try {
    return JSON.parse(text === '' ? 'null' : text)
  } catch {
    throw new Error(`${JSON.stringify(text)} in a filter is not a number, true, false or text in quotes`)
  }
}

function compares(left: unknown, operator: string, right: unknown): boolean {
  if (operator === '==') return left === right
  if (operator === '!=') return left !== right
  const [a, b] = [left, right]
  const order =
    typeof a === 'number' && typeof b === 'number'
      ? a - b
      : typeof a === 'string' && typeof b === 'string'
        ? a.localeCompare(b, 'en')
        : Number.NaN
  if (operator.startsWith('<')) return operator === '<' ? order < 0 : order <= 0
  return operator === '>' ? order > 0 : order >= 0
}

function fieldStep(name: string): Step {
  return value =>
    typeof value === 'object' && value !== null && Object.hasOwn(value, name)
      ? [Reflect.get(value, name)]
      : []
}

function children(value: unknown): readonly unknown[] {
  if (Array.isArray(value)) return value
  return typeof value === 'object' && value !== null ? Object.values(value) : []
}

function descendants(value: unknown): readonly unknown[] {
  return [value, ...children(value).flatMap(descendants)]
}

/** Gives the values that a path selects; none where a field is absent. */
function select(path: JsonPath, value: unknown): readonly unknown[] {
  return path.reduce<readonly unknown[]>((values, step) => values.flatMap(step), [value])
}

/** Fills a template in. Values of one path are separated by spaces; `clean` changes them, and not the template's texts. */
export function fillTemplate(
  parts: JsonPathTemplate,
  value: unknown,
  clean: (text: string) => string = text => text,
): string {
  return parts
    .map(part => {
      if (part.kind === 'text') return part.text
      const values = select(part.path, value)
      if (part.kind === 'path') return clean(valuesText(values))
      return values.map(each => fillTemplate(part.parts, each, clean)).join('')
    })
    .join('')
}

/** Formats selected values: texts as they are, objects and lists as JSON. */
function valuesText(values: readonly unknown[], separator = ' '): string {
  return values.map(each => (typeof each === 'string' ? each : JSON.stringify(each))).join(separator)
}
