import { LineCounter, parseDocument } from 'yaml'

/** Many aliases to nested aliases blow a small text up to gigabytes; real manifests have a handful. */
const ALIAS_COUNT_MAX = 100

export interface YamlDocument {
  readonly value: unknown
  /** Of the document's beginning, from 1. */
  readonly line: number
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
    const value = parseOne(source, line)
    if (value !== undefined && value !== null) yield { value, line }
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

function parseOne(source: string, firstLine: number): unknown {
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
    return document.toJS({ maxAliasCount: ALIAS_COUNT_MAX })
  } catch (error) {
    const message = error instanceof Error ? error.message : String(error)
    throw new YamlTextError(firstLineOf(message), { line: firstLine, column: 1, cause: error })
  }
}

function firstLineOf(message: string): string {
  return message.split('\n')[0] ?? message
}
