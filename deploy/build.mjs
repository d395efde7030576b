// Leaves the whole command in dist/: kprobe.mjs, the program that it loads, its compiled code, and the addon.
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
  writeFileSync,
} from 'node:fs'
import { fileURLToPath } from 'node:url'
import { build } from 'esbuild'
import { withOwnLength } from './own-length.mjs'

const KEEP_CODE_MAX_MS = 60_000
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

/**
 * One function, of which deploy/loader.mjs makes a script: V8 can keep the code of a script, and of no module before
 * Node 22. Modules that only some commands need are bundled as functions that run when they are asked for.
 */
async function bundle() {
  await build({
    absWorkingDir: root,
    entryPoints: { program: 'src/main.ts' },
    outdir: 'dist',
    bundle: true,
    format: 'cjs',
    platform: 'node',
    target: 'node20',
    supported: { 'dynamic-import': false },
    external: ['*.node', 'ffi-rs'],
    banner: { js: '(function (require, importMetaUrl) {' },
    footer: { js: '})' },
    define: {
      'import.meta.url': 'importMetaUrl',
      ...Object.fromEntries(
        Object.entries(BUILD).map(([name, value]) => [`process.env.${name}`, JSON.stringify(value)]),
      ),
    },
    minifySyntax: true,
    // The source stays in memory, a third of it blanks. Lines keep stack traces of use.
    minifyWhitespace: true,
    lineLimit: 120,
    legalComments: 'eof',
    logLevel: 'warning',
  })
  const program = `${root}dist/program.js`
  requireAscii(program)
  writeFileSync(program, withOwnLength(readFileSync(program)))
  copyFileSync(`${root}deploy/loader.mjs`, `${root}dist/kprobe.mjs`)
  chmodSync(`${root}dist/kprobe.mjs`, 0o755)
  for (const name of readdirSync(`${root}dist`))
    if (name.endsWith('.mjs') && name !== 'kprobe.mjs') rmSync(`${root}dist/${name}`)
}

/** The loader reads Latin-1. esbuild escapes other letters in strings and in names, but not in regular expressions. */
function requireAscii(path) {
  const program = readFileSync(path)
  const at = program.findIndex(byte => byte > 0x7f)
  if (at < 0) return
  throw new Error(`${path} is not all ASCII: escape what follows "${program.toString('utf8', at - 40, at)}"`)
}

/** Runs the program once, and keeps what V8 has compiled by then. Without that, a start is slower, and nothing else. */
function keepCode() {
  const options = { stdio: ['ignore', 'ignore', 'pipe'], timeout: KEEP_CODE_MAX_MS }
  try {
    execFileSync(process.execPath, [`${root}deploy/keep-code.mjs`], options)
  } catch (error) {
    console.error(`dist/ has no compiled code, and a start takes longer: ${error.message}`)
  }
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

rmSync(`${root}dist/program.cache`, { force: true })
await bundle()
placeAddon()
keepCode()
linkCommand()
