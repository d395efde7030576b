import { type Document, isAlias, isMap, isNode, isScalar, isSeq, LineCounter, parseDocument } from 'yaml'
import { isListKind } from './object-doubts.ts'

/** Many aliases to nested aliases blow a small text up to gigabytes; real manifests have a handful. */
const ALIAS_COUNT_MAX = 100

interface YamlDocument {
  readonly value: unknown
  /** The line on which the document begins, from 1. */
  readonly line: number
  /** The line on which a field or list item stands; of the part around it where the parser does not know. */
  lineOf(path: readonly (string | number)[]): number
}

/** A document, or an item of a List that is read by itself. */
interface YamlPart extends YamlDocument {
  /** The List that it is an item of, without its items. */
  readonly list?: unknown
}

/** A syntax tree takes a hundred times the memory of its text, and as much time as a MiB takes here holds up all else. */
const DOCUMENT_LENGTH_MAX = 1 << 20
/** A List that is longer is read item by item. */
const LIST_LENGTH_MAX = 1 << 16

/** A document takes some time, however short it is. */
const DOCUMENTS_MAX = 1 << 18
const TOO_MANY = `more than ${DOCUMENTS_MAX} documents in one file; write a List, several files, or JSON`
/** Texts that need no parser. */
const EMPTY: ReadonlySet<string> = new Set(['', '---'])

/** Lines and columns count from 1. */
export class YamlTextError extends Error {
  override readonly name = 'YamlTextError'
  readonly line: number
  readonly column: number

  constructor(
    message: string,
    at: { readonly line: number; readonly column: number; readonly cause: unknown },
  ) {
    super(message, { cause: at.cause })
    this.line = at.line
    this.column = at.column
  }
}

/**
 * The documents of a YAML stream, one at a time, and of a long List its items before it: a caller may pause between them.
 * Empty documents have a value of null. Throws YamlTextError.
 */
export function* yamlDocuments(text: string): Generator<YamlPart> {
  let count = 0
  for (const { source, line } of splitDocuments(text)) {
    if (++count > DOCUMENTS_MAX) throw new YamlTextError(TOO_MANY, { line, column: 1, cause: undefined })
    if (EMPTY.has(source.trim())) {
      yield { value: null, line, lineOf: () => line }
      continue
    }
    const list = source.length > LIST_LENGTH_MAX ? splitList(source, line) : undefined
    const document = parseOne(list?.envelope ?? source, line)
    if (list !== undefined && isListValue(document.value)) {
      for (const item of list.items()) yield { ...parseOne(item.source, item.line), list: document.value }
      yield document
    } else yield list === undefined ? document : parseOne(source, line)
  }
}

function isListValue(value: unknown): boolean {
  return typeof value === 'object' && value !== null && 'kind' in value && isListKind(value.kind)
}

interface SplitList {
  /** The document without its items, on the same lines. */
  readonly envelope: string
  items(): Generator<Source>
}

interface Source {
  readonly source: string
  readonly line: number
}

/**
 * Takes apart a block mapping with a block sequence below its key `items`; undefined for anything else. No line within an
 * item is indented as little as the dash that begins it (YAML 1.2, 8.2.1), so that lines are enough to find the items.
 */
function splitList(source: string, line: number): SplitList | undefined {
  const key = /^items:[ \t]*(?:#.*)?\r?\n/m.exec(source)
  if (key === null || /^%/m.test(source.slice(0, key.index))) return undefined
  const start = key.index + key[0].length
  const dash = /^( *)-(?=\s)/m.exec(source.slice(start, start + LIST_LENGTH_MAX))
  if (dash === null) return undefined
  const indent = dash[1] ?? ''
  const end = endOfItems(source, start, indent)
  const head = source.slice(0, key.index)
  const between = '\n'.repeat(countNewlines(source.slice(key.index, end)))
  return {
    envelope: `${head}items: []${between}${source.slice(end)}`,
    *items() {
      const border = new RegExp(`^${indent}-(?=\\s)`, 'gm')
      border.lastIndex = start + dash.index
      let at = line + countNewlines(source.slice(0, start + dash.index))
      for (let found = border.exec(source); found !== null && found.index < end; ) {
        const next = border.exec(source)
        const text = source.slice(found.index + indent.length + 1, Math.min(next?.index ?? end, end))
        yield { source: `${indent} ${text}`, line: at }
        at += countNewlines(text)
        found = next
      }
    },
  }
}

/** Finds the next key of the mapping, or the end of the document. */
function endOfItems(source: string, start: number, indent: string): number {
  const border = indent === '' ? /^(?![-#\s])/gm : /^[^#\s]/gm
  border.lastIndex = start
  return border.exec(source)?.index ?? source.length
}

/**
 * Cuts before each line that begins with `---`: at the left edge it is a document's border even within a block
 * scalar (YAML 1.2, 9.1.2). Lines that begin with `%` belong to the document that follows.
 */
function* splitDocuments(text: string): Generator<Source> {
  const border = /^---(?=\s|$)/gm
  let start = 0
  let line = 1
  for (const match of text.matchAll(border)) {
    const source = text.slice(start, match.index)
    if (/^%/m.test(source) && !/^[^%#\s]/m.test(source)) continue
    if (source !== '') yield { source, line }
    line += countNewlines(source)
    start = match.index
  }
  yield { source: text.slice(start), line }
}

function countNewlines(text: string): number {
  let count = 0
  for (let at = text.indexOf('\n'); at >= 0; at = text.indexOf('\n', at + 1)) count++
  return count
}

/** Longer texts are not read a second time only to name a line. */
const JSON_LENGTH_MAX = 1 << 16

/** The line on which a part of a JSON object stands that begins on `line`. */
export function lineInJson(text: string, line: number, path: readonly (string | number)[]): number {
  if (text.length > JSON_LENGTH_MAX) return line
  try {
    return parseOne(text, line).lineOf(path)
  } catch (error) {
    // JSON may repeat a name, YAML may not.
    if (error instanceof YamlTextError) return line
    throw error
  }
}

function parseOne(source: string, firstLine: number): YamlDocument {
  const lineCounter = new LineCounter()
  const refuse = (why: string) => new YamlTextError(why, { line: firstLine, column: 1, cause: undefined })
  if (source.length > DOCUMENT_LENGTH_MAX) throw refuse(tooLong(source.length))
  if (isDeep(source)) throw refuse(`nested more than ${NESTING_MAX} levels deep`)
  const document = parseDocument(source, {
    lineCounter,
    prettyErrors: false,
    merge: true,
    logLevel: 'silent',
  })
  const [error] = document.errors
  if (error !== undefined) {
    const { line, col } = lineCounter.linePos(error.pos[0])
    throw new YamlTextError(firstLineOf(error.message), {
      line: firstLine + line - 1,
      column: col,
      cause: error,
    })
  }
  try {
    const value: unknown = document.toJS({ maxAliasCount: ALIAS_COUNT_MAX })
    const lineOf = (path: readonly (string | number)[]) =>
      firstLine + lineCounter.linePos(offsetOf(document, path)).line - 1
    return { value, line: firstLine, lineOf }
  } catch (error) {
    const message = error instanceof Error ? error.message : String(error)
    throw new YamlTextError(firstLineOf(message), { line: firstLine, column: 1, cause: error })
  }
}

/** Objects of the API are nested a dozen levels deep; a parser that runs out of stack can end the process. */
const NESTING_MAX = 200
/** Matches 400 spaces and dashes that begin an item: each level of a block takes at least one. */
const DEEP_LINE = /^(?:[ \t]|[-?](?=[ \t])){400}/m

/** Text within quotes counts as well: what is balanced there changes nothing. */
function isDeep(source: string): boolean {
  let depth = 0
  for (let at = 0; at < source.length && depth <= NESTING_MAX; at++) {
    const unit = source.charCodeAt(at)
    if (unit === OPEN_BRACKET || unit === OPEN_BRACE) depth++
    else if ((unit === CLOSE_BRACKET || unit === CLOSE_BRACE) && depth > 0) depth--
  }
  return depth > NESTING_MAX || DEEP_LINE.test(source)
}

const [OPEN_BRACKET, CLOSE_BRACKET, OPEN_BRACE, CLOSE_BRACE] = [0x5b, 0x5d, 0x7b, 0x7d]

function tooLong(length: number): string {
  const advice = 'write a List with each item on lines of its own, several documents, or JSON'
  return `one YAML document or item has ${length} characters, and ${DOCUMENT_LENGTH_MAX} are read in one piece; ${advice}`
}

function firstLineOf(message: string): string {
  return message.split('\n')[0] ?? message
}

/** Finds where the last step of a path begins in the text, or the last step that exists. */
function offsetOf(document: Document, path: readonly (string | number)[]): number {
  let node: unknown = document.contents
  let offset = startOf(node) ?? 0
  for (const step of path) {
    if (isAlias(node)) node = node.resolve(document)
    if (isMap(node)) {
      const pair = node.items.find(({ key }) => isScalar(key) && String(key.value) === String(step))
      offset = startOf(pair?.key) ?? offset
      node = pair?.value
    } else if (isSeq(node)) {
      node = node.items[Number(step)]
      offset = startOf(node) ?? offset
    } else return offset
  }
  return offset
}

function startOf(node: unknown): number | undefined {
  return isNode(node) ? node.range?.[0] : undefined
}
