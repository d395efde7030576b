import { type Document, isAlias, isMap, isNode, isScalar, isSeq, LineCounter, parseDocument } from 'yaml'

/** Many aliases to nested aliases blow a small text up to gigabytes; real manifests have a handful. */
const ALIAS_COUNT_MAX = 100

export interface YamlDocument {
  readonly value: unknown
  /** Of the document's beginning, from 1. */
  readonly line: number
  /** The line on which a field or list item stands; of the part around it where that cannot be told. */
  lineOf(path: readonly (string | number)[]): number
}

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
 * The documents of a YAML stream, one at a time: a caller may pause between them. Empty documents are left out.
 * Throws YamlTextError.
 */
export function* yamlDocuments(text: string): Generator<YamlDocument> {
  for (const { source, line } of splitDocuments(text)) {
    const document = parseOne(source, line)
    if (document.value !== undefined && document.value !== null) yield document
  }
}

/**
 * Cuts before each line that begins with `---`: at the left edge it is a document's border even within a block
 * scalar (YAML 1.2, 9.1.2). Lines that begin with `%` belong to the document that follows.
 */
function* splitDocuments(text: string): Generator<{ readonly source: string; readonly line: number }> {
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
const JSON_LENGTH_MAX = 1 << 20

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

function firstLineOf(message: string): string {
  return message.split('\n')[0] ?? message
}

/** Where the last step of a path begins in the text, or the last one that is found. */
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
