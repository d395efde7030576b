// Leaves the library in dist/: lib/ with the modules that package.json exports, types/ with their declarations.
import { existsSync, rmSync } from 'node:fs'
import { resolve } from 'node:path'
import { fileURLToPath } from 'node:url'
import { build } from 'esbuild'
import { ENTRIES, writeDeclarations } from './declarations.mjs'

const root = fileURLToPath(new URL('..', import.meta.url))

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

await bundle()
writeDeclarations(`${root}dist/types`)
