// Leaves the library in dist/: lib/ with the modules that package.json exports, types/ with their declarations.
import { execFileSync } from 'node:child_process'
import { existsSync, mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { dirname, join, resolve } from 'node:path'
import { fileURLToPath } from 'node:url'
import { build } from 'esbuild'

const root = fileURLToPath(new URL('..', import.meta.url))
const ENTRIES = ['index', 'netlink', 'nft']

/** The entries share their chunks: a class is the same whichever of them it is imported from. */
async function bundle() {
  rmSync(`${root}dist/lib`, { recursive: true, force: true })
  await build({
    absWorkingDir: root,
    entryPoints: ENTRIES.map(name => `src/library/${name}.ts`),
    outdir: 'dist/lib',
    splitting: true,
    bundle: true,
    format: 'esm',
    platform: 'node',
    target: 'node20',
    // What package.json names as dependencies is installed beside the package, and may be shared with others.
    packages: 'external',
    // Modules of src/ do nothing but declare: what no entry uses is left out.
    plugins: [{ name: 'pure', setup: ({ onResolve }) => onResolve({ filter: /^\.\.?\// }, pure) }],
    legalComments: 'none',
    logLevel: 'warning',
  })
}

function pure({ path, resolveDir, kind }) {
  const full = resolve(resolveDir, path)
  return kind === 'entry-point' || !existsSync(full) ? undefined : { path: full, sideEffects: false }
}

/** tsc writes declarations for every module that an entry reaches; those of what no declaration names are removed. */
function declare() {
  const out = `${root}dist/types`
  const folder = mkdtempSync(`${root}dist/tsconfig-`)
  rmSync(out, { recursive: true, force: true })
  try {
    writeFileSync(`${folder}/tsconfig.json`, JSON.stringify(declarations(out)))
    execFileSync(`${root}node_modules/.bin/tsc`, ['-p', folder], { stdio: 'inherit' })
  } finally {
    rmSync(folder, { recursive: true })
  }
  const named = withImports(ENTRIES.map(name => `${out}/library/${name}.d.ts`))
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

function declarations(outDir) {
  return {
    extends: `${root}tsconfig.json`,
    compilerOptions: {
      noEmit: false,
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

const IMPORT = /(\bfrom |\bimport\()'(\.[^']*)\.ts'/g

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
  return readdirSync(folder, { recursive: true, withFileTypes: true })
    .filter(entry => entry.isFile())
    .map(entry => join(entry.parentPath, entry.name))
}

/** Deepest first, so that what holds nothing but empty folders goes, too. */
function removeEmpty(top) {
  const folders = readdirSync(top, { recursive: true, withFileTypes: true }).filter(entry =>
    entry.isDirectory(),
  )
  const paths = folders.map(entry => join(entry.parentPath, entry.name)).sort((a, b) => b.length - a.length)
  for (const path of paths) if (readdirSync(path).length === 0) rmSync(path, { recursive: true })
}

await bundle()
declare()
