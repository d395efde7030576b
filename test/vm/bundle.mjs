// Test files as one script: an emulated processor takes minutes to do what vitest does before the first test.
import { mkdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { SourceMap } from 'node:module'
import { dirname, join, relative } from 'node:path'
import { fileURLToPath, pathToFileURL } from 'node:url'
import { build } from 'esbuild'

const TOP = fileURLToPath(new URL('../..', import.meta.url))
const RUNNER = fileURLToPath(new URL('guest/run-tests.ts', import.meta.url))
const VITEST = join(TOP, 'node_modules/vitest')
// Bundled CommonJS packages call require() for Node's own modules, which an ES module does not have.
const BANNER = `import { createRequire as createRequireForBundle } from 'node:module'
const require = createRequireForBundle(import.meta.url)`

/**
 * Gives the script's path, `original`, which puts the places of the test files and sources into a line of a stack
 * trace, and `remove`. `files` are paths from the top folder.
 */
export async function bundleTests(files, options) {
  const outfile = join(TOP, `.cache/vm/tests-${process.pid}.mjs`)
  const { outputFiles } = await build({
    absWorkingDir: TOP,
    stdin: { contents: entry(files, options), resolveDir: TOP },
    outfile,
    write: false,
    bundle: true,
    format: 'esm',
    platform: 'node',
    target: 'node20',
    external: ['*.node', 'ffi-rs', 'esbuild'],
    banner: { js: BANNER },
    sourcemap: 'external',
    plugins: [partsOfVitest, ownPlaces],
    logLevel: 'warning',
  })
  const textOf = name => outputFiles.find(({ path }) => path.endsWith(name))?.text ?? ''
  mkdirSync(dirname(outfile), { recursive: true })
  writeFileSync(outfile, textOf('.mjs'))
  const map = new SourceMap(JSON.parse(textOf('.map')))
  return {
    script: outfile,
    original: line => originalPlaces(line, outfile, map),
    remove: () => rmSync(outfile, { force: true }),
  }
}

function entry(files, options) {
  const loaders = files.map(
    file => `  ${JSON.stringify(file)}: () => import(${JSON.stringify(join(TOP, file))}),`,
  )
  return `import { runTests } from ${JSON.stringify(RUNNER)}
await runTests({\n${loaders.join('\n')}\n}, ${JSON.stringify(options)}).catch(error => { console.error(error); process.exit(1) })`
}

/** What vitest itself depends on is not always where we could import it. */
const partsOfVitest = {
  name: 'parts of vitest',
  setup({ onResolve, resolve }) {
    onResolve({ filter: /^@vitest\// }, ({ path, kind, pluginData }) =>
      pluginData === 'found' ? undefined : resolve(path, { kind, resolveDir: VITEST, pluginData: 'found' }),
    )
  },
}

/** Sources that look for files beside themselves still find them. */
const ownPlaces = {
  name: 'own places',
  setup({ onLoad }) {
    onLoad({ filter: /\.(ts|mjs)$/ }, ({ path }) => {
      if (path.includes('/node_modules/')) return undefined
      const text = readFileSync(path, 'utf8')
      const contents = text.replaceAll('import.meta.url', JSON.stringify(pathToFileURL(path).href))
      return { contents, loader: path.endsWith('.ts') ? 'ts' : 'js' }
    })
  },
}

function originalPlaces(line, script, map) {
  const at = line.indexOf(script)
  if (at < 0) return line
  return line.replace(/(?:file:\/\/)?([^\s()]+\.mjs):(\d+):(\d+)/g, (all, file, row, column) => {
    if (file !== script) return all
    const { originalSource, originalLine, originalColumn } = map.findEntry(row - 1, column - 1)
    if (originalSource === undefined) return all
    const path = relative(TOP, join(dirname(script), originalSource))
    return `${path}:${originalLine + 1}:${originalColumn + 1}`
  })
}
