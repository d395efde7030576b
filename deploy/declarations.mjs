// What package.json exports, as the declarations of its types.
import { execFileSync } from 'node:child_process'
import { mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { dirname, join } from 'node:path'
import { fileURLToPath } from 'node:url'

const root = fileURLToPath(new URL('..', import.meta.url))
/** Of src/library: what each entry point exports. */
export const ENTRIES = ['index', 'netlink', 'nft']

/** tsc writes declarations for every module that an entry reaches; those of what no declaration names are removed. */
export function writeDeclarations(out) {
  const folder = mkdtempSync(join(tmpdir(), 'kprobe-tsconfig-'))
  rmSync(out, { recursive: true, force: true })
  try {
    writeFileSync(`${folder}/tsconfig.json`, JSON.stringify(compilerOptions(out)))
    execFileSync(`${root}node_modules/.bin/tsc`, ['-p', folder], { stdio: ['ignore', 2, 2] })
  } finally {
    rmSync(folder, { recursive: true })
  }
  const named = withImports(ENTRIES.map(name => join(out, 'library', `${name}.d.ts`)))
  for (const path of filesBelow(out)) {
    if (!named.has(path)) rmSync(path)
    // The compiler leaves names as they are in the sources.
    else
      writeFileSync(
        path,
        readFileSync(path, 'utf8').replace(IMPORT, (_, head, from) => `${head}'${from}.js'`),
      )
  }
  removeEmpty(out)
}

function compilerOptions(outDir) {
  return {
    extends: `${root}tsconfig.json`,
    compilerOptions: {
      noEmit: false,
      incremental: false,
      tsBuildInfoFile: null,
      declaration: true,
      emitDeclarationOnly: true,
      rewriteRelativeImportExtensions: true,
      rootDir: `${root}src`,
      outDir,
      typeRoots: [`${root}node_modules/@types`],
    },
    files: ENTRIES.map(name => `${root}src/library/${name}.ts`),
    include: [],
  }
}

const IMPORT = /(\bfrom |\bimport\()['"](\.[^'"]*)\.ts['"]/g

function withImports(entries) {
  const found = new Set()
  const open = [...entries]
  for (let path = open.pop(); path !== undefined; path = open.pop()) {
    if (found.has(path)) continue
    found.add(path)
    for (const [, , from] of readFileSync(path, 'utf8').matchAll(IMPORT))
      open.push(join(dirname(path), `${from}.d.ts`))
  }
  return found
}

function filesBelow(folder) {
  return entriesBelow(folder, entry => entry.isFile())
}

function entriesBelow(folder, wanted) {
  const entries = readdirSync(folder, { recursive: true, withFileTypes: true }).filter(wanted)
  return entries.map(entry => join(entry.parentPath, entry.name))
}

/** Deepest first, so that what holds nothing but empty folders goes, too. */
function removeEmpty(top) {
  const folders = entriesBelow(top, entry => entry.isDirectory()).sort((a, b) => b.length - a.length)
  for (const path of folders) if (readdirSync(path).length === 0) rmSync(path, { recursive: true })
}
