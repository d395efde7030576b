// Writes docs/api, or the folder of the first argument, from the declarations of the library and their comments: one file an
// entry point.
import { mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { dirname, join } from 'node:path'
import { argv } from 'node:process'
import { fileURLToPath } from 'node:url'
import { ENTRIES, writeDeclarations } from './declarations.mjs'

const IMPORTED_AS = { index: 'kprobe', netlink: 'kprobe/netlink', nft: 'kprobe/nft' }

/** Texts by the names of their files, and the names of types that are used there and that no entry exports. */
function makeReference() {
  const folder = mkdtempSync(join(tmpdir(), 'kprobe-types-'))
  try {
    writeDeclarations(folder)
    const modules = new Map()
    const entries = ENTRIES.map(name => readEntry(modules, name, join(folder, 'library', `${name}.d.ts`)))
    const files = new Map(entries.map(entry => [`${entry.name}.md`, pageOf(entry)]))
    return { files, unexported: unexportedIn(entries) }
  } finally {
    rmSync(folder, { recursive: true })
  }
}

function readEntry(modules, name, path) {
  const { about, declarations, reexports, stars } = read(modules, path)
  const found = new Map([...declarations].filter(([, { isExported }]) => isExported))
  for (const [exported, from] of reexports) found.set(exported, declarationOf(modules, from, exported))
  for (const { from, isOfTypes } of stars)
    for (const [each, declaration] of read(modules, from).declarations)
      if (declaration.isExported && (!isOfTypes || TYPES.includes(declaration.kind)))
        found.set(each, declaration)
  return { name, about, found }
}

/** Where it is declared, across modules that hand it on. */
function declarationOf(modules, path, name) {
  const { declarations, reexports, imports } = read(modules, path)
  const here = declarations.get(name)
  if (here !== undefined) return here
  const from = reexports.get(name) ?? imports.get(name)
  if (from === undefined) throw new Error(`${path} declares no ${name}`)
  return declarationOf(modules, from, name)
}

function read(modules, path) {
  const known = modules.get(path)
  if (known !== undefined) return known
  const text = readFileSync(path, 'utf8')
  const at = from => join(dirname(path), from.replace(/\.js$/, '.d.ts'))
  const named = words => {
    const list = [...text.matchAll(new RegExp(`^${words}(?: type)? \\{([^}]*)\\} from '(\\.[^']*)'`, 'gm'))]
    const names = list.flatMap(([, names, from]) =>
      names
        .split(',')
        .flatMap(each => (each.trim() === '' ? [] : [[each.trim().replace(/^type /, ''), at(from)]])),
    )
    return new Map(names)
  }
  const module = {
    about: commentText(/^\/\*\*[\s\S]*?\*\//.exec(text)?.[0] ?? ''),
    reexports: named('export'),
    imports: named('import'),
    stars: [...text.matchAll(/^export (type )?\* from '(\.[^']*)'/gm)].map(([, type, from]) => ({
      from: at(from),
      isOfTypes: type !== undefined,
    })),
    declarations: declarationsIn(text),
  }
  const names = new Set([...module.imports.keys(), ...module.declarations.keys()])
  for (const declaration of module.declarations.values()) declaration.names = names
  modules.set(path, module)
  return module
}

const TYPES = ['interface', 'type']
const HEAD = /^(export )?(?:declare )?(?:abstract )?(interface|class|type|const|function) ([\w$]+)/

/** Statements at the left margin, each with the comment before it. */
function declarationsIn(text) {
  const found = new Map()
  const lines = text.split('\n')
  let comment = ''
  for (let at = 0; at < lines.length; at++) {
    if (lines[at].startsWith('/**')) {
      const end = lines.findIndex((line, index) => index >= at && line.includes('*/'))
      comment = lines.slice(at, end + 1).join('\n')
      at = end
      continue
    }
    const head = HEAD.exec(lines[at])
    if (head === null) {
      comment = ''
      continue
    }
    const end = endOf(lines, at, head[2])
    const code = lines.slice(at, end + 1).join('\n')
    found.set(head[3], {
      isExported: head[1] !== undefined,
      kind: head[2],
      code: plain(code),
      about: commentText(comment),
    })
    comment = ''
    at = end
  }
  return found
}

function endOf(lines, start, kind) {
  const isBlock = kind === 'interface' || kind === 'class'
  let depth = 0
  let inComment = false
  for (let at = start; at < lines.length; at++) {
    const line = lines[at]
    inComment ||= line.trim().startsWith('/*')
    if (!inComment) for (const each of line) depth += '{[('.includes(each) ? 1 : '}])'.includes(each) ? -1 : 0
    else if (line.includes('*/')) inComment = false
    if (!inComment && depth === 0 && (isBlock ? line.endsWith('}') : line.endsWith(';'))) return at
  }
  throw new Error(`no end of ${lines[start]}`)
}

function plain(code) {
  return (
    code
      .replace(/^export (declare )?/, '')
      .replace(/^ +/gm, indent => indent.slice(0, indent.length / 2))
      .replace(/^ {2}#private;\n/gm, '')
      // An inferred type names its file.
      .replace(/import\('[^']*'\)\./g, '')
  )
}

function commentText(comment) {
  const lines = comment.replace(/^\/\*\*\s?|\s*\*\/$/g, '').split('\n')
  return lines
    .map(line => line.replace(/^ \* ?/, ''))
    .join('\n')
    .trim()
}

const CHAPTERS = [
  ['Functions', ['function']],
  ['Classes', ['class']],
  ['Types', ['interface', 'type']],
  ['Values', ['const']],
]

function pageOf({ name, about, found }) {
  const parts = [`# ${IMPORTED_AS[name]}\n\n${about}\n\nMade from the sources by \`npm run reference\`.\n`]
  const all = [...found].sort(([a], [b]) => (a < b ? -1 : 1))
  for (const [title, kinds] of CHAPTERS) {
    const list = all.filter(([, { kind }]) => kinds.includes(kind))
    if (list.length === 0) continue
    parts.push(`## ${title}\n`)
    const bare = list.filter(([, { kind, about }]) => kind === 'const' && about === '')
    for (const [each, { about, code, kind }] of list) {
      if (kind === 'const' && about === '') continue
      parts.push(`### ${each}\n\n${about === '' ? '' : `${about}\n\n`}\`\`\`ts\n${code}\n\`\`\`\n`)
    }
    if (bare.length > 0)
      parts.push(
        `### Numbers of the kernel\n\n\`\`\`ts\n${bare.map(([, { code }]) => code).join('\n')}\n\`\`\`\n`,
      )
  }
  return parts.join('\n')
}

/** Names that declarations use, that modules of ours declare, and that no program can import. */
function unexportedIn(entries) {
  const exported = new Set(entries.flatMap(({ found }) => [...found.keys()]))
  const used = new Set()
  for (const { found } of entries) {
    for (const { code, names } of found.values()) {
      const words = code.replace(/\/\*[\s\S]*?\*\//g, '').replace(/'[^']*'/g, '')
      for (const [name] of words.matchAll(/\b[A-Z]\w+/g))
        if (names.has(name) && !exported.has(name)) used.add(name)
    }
  }
  return [...used].sort()
}

const [out = fileURLToPath(new URL('../docs/api', import.meta.url))] = argv.slice(2)
const { files, unexported } = makeReference()
mkdirSync(out, { recursive: true })
for (const [name, text] of files) writeFileSync(join(out, name), text)
console.log(`used and not exported: ${unexported.join(' ') || 'nothing'}`)
