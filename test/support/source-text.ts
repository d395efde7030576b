/**
 * Source text with the insides of comments, strings, templates and regular expressions blanked out, so that what is
 * left can be searched for code. Line breaks and lengths stay. Enough of a tokeniser for TypeScript and C as written
 * here; it does not parse.
 */
export function codeOnly(source: string): string {
  const out: string[] = []
  // Depth of braces inside each open `${`, innermost last.
  const templates: number[] = []
  let at = 0
  while (at < source.length) {
    const end = skippable(source, at, out, templates)
    if (end === undefined) {
      countBrace(source.charAt(at), templates)
      out.push(source.charAt(at))
      at++
      continue
    }
    out.push(blank(source.slice(at, end)))
    at = end
  }
  return out.join('')
}

/** Where the comment, string, template part or regular expression at `at` ends; undefined if there is none. */
function skippable(
  source: string,
  at: number,
  out: readonly string[],
  templates: number[],
): number | undefined {
  const two = source.slice(at, at + 2)
  const one = two.charAt(0)
  if (two === '//') return endOf(source, at, '\n', 0)
  if (two === '/*') return endOf(source, at + 2, '*/', 2)
  if (one === "'" || one === '"') return endOfQuoted(source, at + 1, one)
  if (one === '`') return endOfTemplate(source, at + 1, templates)
  if (one === '}' && templates.at(-1) === 0) {
    templates.pop()
    return endOfTemplate(source, at + 1, templates)
  }
  if (one === '/' && opensRegExp(out)) return endOfRegExp(source, at + 1)
  return undefined
}

function countBrace(char: string, templates: number[]): void {
  const last = templates.length - 1
  const depth = templates[last]
  if (depth === undefined) return
  if (char === '{') templates[last] = depth + 1
  if (char === '}') templates[last] = depth - 1
}

function endOf(source: string, from: number, what: string, length: number): number {
  const found = source.indexOf(what, from)
  return found < 0 ? source.length : found + length
}

function endOfQuoted(source: string, from: number, quote: string): number {
  let at = from
  while (at < source.length && source.charAt(at) !== quote) at += source.charAt(at) === '\\' ? 2 : 1
  return at + 1
}

function endOfTemplate(source: string, from: number, templates: number[]): number {
  for (let at = from; at < source.length; at++) {
    const char = source.charAt(at)
    if (char === '\\') at++
    if (char === '`') return at + 1
    if (char === '$' && source.charAt(at + 1) === '{') {
      templates.push(0)
      return at + 2
    }
  }
  return source.length
}

function endOfRegExp(source: string, from: number): number {
  let inClass = false
  for (let at = from; at < source.length; at++) {
    const char = source.charAt(at)
    if (char === '\\') at++
    if (char === '[') inClass = true
    if (char === ']') inClass = false
    if (char === '/' && !inClass) return at + 1
  }
  return source.length
}

/** A slash after a value divides; after anything else it opens a regular expression. */
function opensRegExp(out: readonly string[]): boolean {
  const before = out.slice(-40).join('').trimEnd()
  if (before === '') return true
  if (/\b(return|typeof|case|in|of|yield|await|throw)$/.test(before)) return true
  return !/[\w$)\]}"'`]$/.test(before)
}

/** Quotes and slashes stay at the ends, so that a blanked value still reads as one. */
function blank(text: string): string {
  if (text.startsWith('/')) return text.replace(/[^\n]/g, ' ')
  return text.replace(/[^\n]/g, (_char, index: number) =>
    index === 0 || index === text.length - 1 ? '"' : ' ',
  )
}

export interface FunctionSpan {
  readonly name: string
  /** Of its first line, from 1. */
  readonly line: number
  readonly lines: number
}

/** Every function, method and braced arrow function. */
export function functionsOf(source: string): FunctionSpan[] {
  const code = codeOnly(source)
  const found: FunctionSpan[] = []
  const open: { readonly start: number | undefined; readonly name: string }[] = []
  for (let at = 0; at < code.length; at++) {
    const char = code.charAt(at)
    if (char === '{') open.push(functionAt(code, at))
    if (char !== '}') continue
    const closed = open.pop()
    if (closed?.start === undefined) continue
    const line = lineAt(code, closed.start)
    found.push({ name: closed.name, line, lines: lineAt(code, at) - line + 1 })
  }
  return found
}

const CONTROL = new Set(['if', 'for', 'while', 'switch', 'catch', 'with', 'await', 'do', 'else', 'try'])

/** Characters looked at before a brace, in search of the function it belongs to. */
const HEADER_MAX = 1000

/** Where the function whose body opens at `brace` starts; start is undefined for any other brace. */
function functionAt(code: string, brace: number): { start: number | undefined; name: string } {
  const from = Math.max(0, brace - HEADER_MAX)
  const before = code.slice(from, brace).trimEnd()
  const none = { start: undefined, name: '' }
  // The return type, if any, ends at the brace and starts after the `)` of the parameters.
  const arrow = before.endsWith('=>')
  const header = arrow ? before.slice(0, -2).trimEnd() : before
  const close = parametersEnd(header)
  if (close === undefined) return arrow ? { start: brace, name: 'arrow function' } : none
  const opening = matchingOpen(header, close)
  // What was blanked is long runs of spaces, over which these would go back and forth.
  const ahead = header.slice(0, opening).replace(/\s+/g, ' ').trimEnd()
  const word = /([\w$#]*) ?(<[^()]*>)?$/.exec(ahead)?.[1] ?? ''
  if (CONTROL.has(word)) return none
  const named = arrow ? /([\w$]+) ?(:[^=;]*)?= ?(async)?$/.exec(ahead)?.[1] : word
  return { start: from + opening, name: named === undefined || named === '' ? 'arrow function' : named }
}

function parametersEnd(header: string): number | undefined {
  if (header.endsWith(')')) return header.length - 1
  const typed = /\)\s*:\s*[^;{}()=]*(\{[^{}]*\}[^;{}()=]*)?$/.exec(header)
  if (typed === null || /\)\s*:\s*$/.test(header)) return undefined
  // What looks like a return type may be a whole function before a class or an interface.
  if (/\b(class|interface|return|const)\b/.test(typed[0])) return undefined
  return typed.index
}

function matchingOpen(code: string, close: number): number {
  let depth = 0
  for (let at = close; at >= 0; at--) {
    const char = code.charAt(at)
    if (char === ')') depth++
    if (char === '(' && --depth === 0) return at
  }
  return 0
}

function lineAt(code: string, index: number): number {
  let line = 1
  for (let at = code.indexOf('\n'); at >= 0 && at < index; at = code.indexOf('\n', at + 1)) line++
  return line
}

/** Statements and declarations outside every brace, bracket and parenthesis, one string a line of source. */
export function topLevelLines(source: string): string[] {
  const kept: string[] = []
  let depth = 0
  for (const line of codeOnly(source).split('\n')) {
    if (depth === 0) kept.push(line)
    for (const char of line) {
      if ('{[('.includes(char)) depth++
      if ('}])'.includes(char)) depth--
    }
  }
  return kept
}

/** The modules that a file imports or re-exports, types included, as written. */
export function importsOf(source: string): string[] {
  const found: string[] = []
  const code = codeOnly(source)
  const statement = /\bfrom\s+"|\bimport\s*\(?\s*"/g
  for (let match = statement.exec(code); match !== null; match = statement.exec(code)) {
    const quote = match.index + match[0].length - 1
    const text = /^['"`]([^'"`\n]+)['"`]/.exec(source.slice(quote))
    if (text?.[1] !== undefined) found.push(text[1])
  }
  return found
}
