// Leaves the whole command in dist/: kprobe.mjs, the parts that it loads when they are needed, and the addon.
import { execFileSync } from 'node:child_process'
import {
  chmodSync,
  copyFileSync,
  existsSync,
  mkdirSync,
  readdirSync,
  readFileSync,
  renameSync,
  rmSync,
  symlinkSync,
} from 'node:fs'
import { fileURLToPath } from 'node:url'
import { build } from 'esbuild'

const root = fileURLToPath(new URL('..', import.meta.url))
const { version } = JSON.parse(readFileSync(`${root}package.json`, 'utf8'))

/** What src/base/build-info.ts says. An image is built from a folder without a repository: its build gives the commit. */
const BUILD = {
  KPROBE_VERSION: version,
  KPROBE_COMMIT: process.env.KPROBE_COMMIT || git('describe', '--always', '--dirty', '--exclude=*'),
  KPROBE_COMMIT_DATE: process.env.KPROBE_COMMIT_DATE || git('log', '-1', '--format=%cI'),
}

/** Empty where there is no repository, or no git. */
function git(...argv) {
  if (!existsSync(`${root}.git`)) return ''
  try {
    return execFileSync('git', argv, {
      cwd: root,
      encoding: 'utf8',
      stdio: ['ignore', 'pipe', 'ignore'],
    }).trim()
  } catch {
    return ''
  }
}

// Bundled CommonJS packages call require() for Node's own modules, which an ES module does not have.
const BANNER = `#!/usr/bin/env node
import { createRequire as createRequireForBundle } from 'node:module'
const require = createRequireForBundle(import.meta.url)`

async function bundle() {
  const { metafile } = await build({
    absWorkingDir: root,
    entryPoints: { kprobe: 'src/main.ts' },
    outdir: 'dist',
    outExtension: { '.js': '.mjs' },
    // Commands and the client of the API server are loaded when they are asked for: they cost the others nothing.
    splitting: true,
    chunkNames: '[name]-[hash]',
    metafile: true,
    bundle: true,
    format: 'esm',
    platform: 'node',
    target: 'node20',
    external: ['*.node', 'ffi-rs'],
    banner: { js: BANNER },
    define: Object.fromEntries(
      Object.entries(BUILD).map(([name, value]) => [`process.env.${name}`, JSON.stringify(value)]),
    ),
    minifySyntax: true,
    legalComments: 'eof',
    logLevel: 'warning',
  })
  chmodSync(`${root}dist/kprobe.mjs`, 0o755)
  const made = new Set(Object.keys(metafile.outputs).map(path => path.slice('dist/'.length)))
  for (const name of readdirSync(`${root}dist`))
    if (name.endsWith('.mjs') && !made.has(name)) rmSync(`${root}dist/${name}`)
}

function placeAddon() {
  const built = `${root}build/Release/kprobe.node`
  if (!existsSync(built))
    throw new Error('build/Release/kprobe.node is missing: run `npm run build:native` first')
  const placed = `${root}dist/kprobe.node`
  // A kprobe that runs has the old file mapped: writing into it would end that process.
  copyFileSync(built, `${placed}.new`)
  renameSync(`${placed}.new`, placed)
}

/** npm links the commands of dependencies only; with this, `npx kprobe` finds ours without installing anything. */
function linkCommand() {
  const link = `${root}node_modules/.bin/kprobe`
  mkdirSync(`${root}node_modules/.bin`, { recursive: true })
  rmSync(link, { force: true })
  symlinkSync('../../dist/kprobe.mjs', link)
}

await bundle()
placeAddon()
linkCommand()
