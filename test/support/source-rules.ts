import { codeOnly, functionsOf, importsOf, topLevelLines } from './source-text.ts'

/** A file of the repository: its path from the top folder, with forward slashes, and its text. */
export interface SourceFile {
  readonly path: string
  readonly text: string
}

export const FILE_LINES_MAX = 450
export const FUNCTION_LINES_MAX = 60
export const NATIVE_LINES_MAX = 450

const EVERYTHING = 'everything' as const

/**
 * What each part of src/ may import, itself aside: a folder, or one file of it. The composition root (daemon.ts) and
 * the commands know every part; nobody but main.ts knows the commands.
 */
const MAY_IMPORT: Readonly<Record<string, readonly string[] | typeof EVERYTHING>> = {
  base: [],
  netlink: ['base'],
  kernel: ['base', 'netlink'],
  model: ['base'],
  reconcile: ['base', 'model'],
  dataplane: ['base', 'model', 'kernel', 'reconcile/dataplane.ts'],
  source: ['base', 'model'],
  telemetry: ['base', 'model'],
  config: ['base', 'model', 'reconcile/dataplane.ts'],
  cli: EVERYTHING,
  'daemon.ts': EVERYTHING,
  'main.ts': EVERYTHING,
}

/** Files that only these may import, whatever MAY_IMPORT says. */
const IMPORTED_ONLY_BY: Readonly<Record<string, readonly string[]>> = {
  'main.ts': [],
  cli: ['main.ts', 'cli'],
  'daemon.ts': ['main.ts', 'cli'],
}

const FORBIDDEN_MODULES = /^(node:)?(child_process|cluster|vm)$/

export function importComplaints(file: SourceFile): string[] {
  const complaints: string[] = []
  const from = inSrc(file.path)
  for (const module of importsOf(file.text)) {
    if (FORBIDDEN_MODULES.test(module))
      complaints.push(`${file.path}: imports ${module}: no process is ever started`)
    if (!module.startsWith('.')) continue
    if (!/\.(ts|json|node)$/.test(module))
      complaints.push(`${file.path}: imports ${module} without its extension`)
    const to = inSrc(resolvePath(file.path, module))
    const why = forbidden(from, to)
    if (why !== undefined) complaints.push(`${file.path}: imports src/${to}: ${why}`)
  }
  return complaints
}

function forbidden(from: string, to: string): string | undefined {
  const [fromPart, toPart] = [partOf(from), partOf(to)]
  if (fromPart === toPart) return undefined
  const importers = IMPORTED_ONLY_BY[toPart]
  if (importers !== undefined && !importers.includes(fromPart))
    return `only ${importers.join(', ') || 'nobody'} may`
  const allowed = MAY_IMPORT[fromPart]
  if (allowed === undefined) return `src/${fromPart} has no import rule`
  if (allowed === EVERYTHING || allowed.includes(toPart) || allowed.includes(to)) return undefined
  return `src/${fromPart} may import ${allowed.length === 0 ? 'nothing' : `only ${allowed.join(', ')}`}`
}

function inSrc(path: string): string {
  return path.replace(/^src\//, '')
}

function partOf(inSrcPath: string): string {
  return inSrcPath.split('/')[0] ?? inSrcPath
}

export function resolvePath(importer: string, module: string): string {
  const parts = importer.split('/').slice(0, -1)
  for (const part of module.split('/')) {
    if (part === '..') parts.pop()
    else if (part !== '.') parts.push(part)
  }
  return parts.join('/')
}

/** Every circle of imports, type imports included, as `a -> b -> a`; one for each file from which one is found. */
export function circleComplaints(files: readonly SourceFile[]): string[] {
  const edges = new Map(files.map(file => [file.path, localImports(file)]))
  const done = new Set<string>()
  const complaints: string[] = []
  const walk = (path: string, trail: readonly string[]): void => {
    const start = trail.indexOf(path)
    if (start >= 0) complaints.push(`circle: ${[...trail.slice(start), path].join(' -> ')}`)
    if (start >= 0 || done.has(path)) return
    for (const next of edges.get(path) ?? []) walk(next, [...trail, path])
    done.add(path)
  }
  for (const path of edges.keys()) walk(path, [])
  return complaints
}

function localImports(file: SourceFile): string[] {
  return importsOf(file.text)
    .filter(module => module.startsWith('.'))
    .map(module => resolvePath(file.path, module))
}

export function sizeComplaints(file: SourceFile): string[] {
  const lines = lineCount(file.text)
  const complaints: string[] = []
  if (lines > FILE_LINES_MAX) complaints.push(`${file.path}: ${lines} lines, more than ${FILE_LINES_MAX}`)
  for (const { name, line, lines } of functionsOf(file.text)) {
    // The body of a suite is a list of tests, not a function anyone follows from top to bottom.
    if (lines <= FUNCTION_LINES_MAX || (name === 'arrow function' && isSuite(file, line))) continue
    complaints.push(`${file.path}:${line}: ${name} has ${lines} lines, more than ${FUNCTION_LINES_MAX}`)
  }
  return complaints
}

function isSuite(file: SourceFile, line: number): boolean {
  return file.path.endsWith('.test.ts') && /^\s*describe\b/.test(file.text.split('\n')[line - 1] ?? '')
}

export function lineCount(text: string): number {
  return text.split('\n').length - (text.endsWith('\n') ? 1 : 0)
}

/** Mutable state that outlives a call: `let` and `var`, and containers and buffers not declared read-only. */
export function moduleStateComplaints(file: SourceFile): string[] {
  const complaints: string[] = []
  for (const line of topLevelLines(file.text)) {
    if (/^(export )?(let|var)\b/.test(line)) complaints.push(`${file.path}: module-level ${line.trim()}`)
    const made =
      /^(?:export )?const [\w$]+(:[^=]*)? = (?:new (?:Weak)?(?:Map|Set|Array|\w+Array|ArrayBuffer|DataView)\b|Buffer\.)/
    const declared = made.exec(line)
    if (declared === null || /Readonly|readonly/.test(declared[1] ?? '')) continue
    complaints.push(`${file.path}: module-level mutable state: ${line.trim()}`)
  }
  return complaints
}

/** Only main.ts ends the process or sets its exit code. */
export function exitComplaints(file: SourceFile): string[] {
  if (file.path === 'src/main.ts') return []
  const ends = /\bprocess\s*\.\s*(exit|exitCode|abort|kill|reallyExit)\b/.exec(codeOnly(file.text))
  return ends === null ? [] : [`${file.path}: process.${ends[1]}: only src/main.ts exits`]
}

/** `as` says what the compiler cannot check. It is left to the one table-driven codec. */
export function castComplaints(file: SourceFile): string[] {
  if (file.path === 'src/netlink/schema.ts') return []
  const complaints: string[] = []
  codeOnly(file.text)
    .split('\n')
    .forEach((line, index) => {
      const cast = /[\w$)\]}"]\s+as\s+(?!const\b)[\w$({["]/.test(line)
      if (cast && !isRenaming(line)) complaints.push(`${file.path}:${index + 1}: a cast: ${line.trim()}`)
    })
  return complaints
}

function isRenaming(line: string): boolean {
  return (
    /^\s*(import|export)\b/.test(line) || /^\s*(type )?[\w$]+ as [\w$]+,?$/.test(line) || /^} from/.test(line)
  )
}

const UNFINISHED = /\b(TODO|FIXME|XXX|HACK|STUB|stubbed|for now|not implemented yet|not yet implemented)\b/

export function unfinishedComplaints(file: SourceFile): string[] {
  const found = UNFINISHED.exec(file.text)
  return found === null ? [] : [`${file.path}: says "${found[1]}"`]
}

export function nameComplaints(path: string): string[] {
  const name = path.split('/').at(-1) ?? ''
  // A C file bears the name of what it defines, which C cannot write with a dash.
  const good = /\.[ch]$/.test(name)
    ? /^[a-z0-9]+([-_][a-z0-9]+)*\.[ch]$/
    : /^[a-z0-9]+(-[a-z0-9]+)*(\.[a-z0-9-]+)+$/
  return good.test(name) || /^(README|\.gitkeep)/.test(name) ? [] : [`${path}: file names are kebab-case`]
}
