import { LineCounter, parseDocument } from 'yaml'

interface YamlDocument {
  readonly value: unknown
  /** The line on which the document begins, from 1. */
  readonly line: number
}

/** A syntax tree takes a hundred times the memory of its text, and as much time as a MiB takes here holds up all else. */
const DOCUMENT_LENGTH_MAX = 1 << 20

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
 * Reads the documents of a YAML stream, one at a time: a caller may pause between them. Empty documents have a value of
 * null. Throws YamlTextError.
 */
export function* yamlDocuments(text: string): Generator<YamlDocument> {
  let count = 0
  for (const { source, line } of splitDocuments(text)) {
    if (++count > DOCUMENTS_MAX) throw new YamlTextError(TOO_MANY, { line, column: 1, cause: undefined })
    yield EMPTY.has(source.trim()) ? { value: null, line } : { value: parseOne(source, line), line }
  }
}

interface Source {
  readonly source: string
  readonly line: number
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

function parseOne(source: string, firstLine: number): unknown {
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
    throw new YamlTextError(`invalid YAML: ${firstLineOf(error.message)}`, {
      line: firstLine + line - 1,
      column: col,
      cause: error,
    })
  }
  try {
    // The parser's own limit of aliases holds: aliases to aliases blow a small text up to gigabytes.
    return document.toJS()
  } catch (error) {
    const message = error instanceof Error ? error.message : String(error)
    throw new YamlTextError(`invalid YAML: ${firstLineOf(message)}`, {
      line: firstLine,
      column: 1,
      cause: error,
    })
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
  return `one YAML document has ${length} characters, and at most ${DOCUMENT_LENGTH_MAX} are read; write several documents, or JSON`
}

function firstLineOf(message: string): string {
  return message.split('\n')[0] ?? message
}
