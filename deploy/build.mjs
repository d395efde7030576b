// Leaves the whole command in dist/: kprobe.mjs, the program that it loads, its compiled code, the addon, the web page,
// client-node.cjs, which `kprobe nodes` loads, and build.json, which says what these were made of.
import { execFileSync } from 'node:child_process'
import {
  chmodSync,
  copyFileSync,
  existsSync,
  mkdirSync,
  openSync,
  readdirSync,
  readFileSync,
  renameSync,
  rmSync,
  symlinkSync,
  writeFileSync,
} from 'node:fs'
import { fileURLToPath } from 'node:url'
import { gzipSync } from 'node:zlib'
import { build } from 'esbuild'
import { withOwnLength } from './own-length.mjs'

const KEEP_CODE_MAX_MS = 60_000
/** See deploy/loader.mjs. */
const KEPT_CODE = `program.${process.arch}.cache`
/** See deploy/keep-code.mjs. */
const KEEP_CODE_FLAGS = ['--hash-seed=1', '--no-flush-bytecode', '--no-sparkplug']
const KEEP_CODE_ENV = { UV_THREADPOOL_SIZE: '1' }
const root = fileURLToPath(new URL('..', import.meta.url))
const { version } = JSON.parse(readFileSync(`${root}package.json`, 'utf8'))

/**
 * What src/base/build-info.ts says. An image may be built from a folder without a repository: its build gives the commit. The
 * abbreviation does not depend on the number of objects in the clone.
 */
const BUILD = {
  KPROBE_VERSION: version,
  KPROBE_COMMIT:
    process.env.KPROBE_COMMIT || git('describe', '--always', '--abbrev=12', '--dirty', '--exclude=*'),
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

/** The packages that may be in program.js, which runs with the rights of the daemon; decision 0007 says why these. */
const PROGRAM_PACKAGES = [
  '@pinojs/redact',
  'atomic-sleep',
  'on-exit-leak-free',
  'pino',
  'pino-std-serializers',
  'prom-client',
  'quick-format-unescaped',
  'safe-stable-stringify',
  'sonic-boom',
  'thread-stream',
  'yaml',
].map(name => `node_modules/${name}`)

/** Stands in the program where its packages will: they are known when it is bundled. */
const PACKAGES_HERE = 'packages of kprobe'

function defines(others = {}) {
  return Object.fromEntries(
    Object.entries({ ...BUILD, ...others }).map(([name, value]) => [
      `process.env.${name}`,
      JSON.stringify(value),
    ]),
  )
}

const COMMON = {
  absWorkingDir: root,
  metafile: true,
  // Names of modules are part of the program: they say node_modules/, wherever that leads.
  preserveSymlinks: true,
  bundle: true,
  format: 'cjs',
  platform: 'node',
  target: 'node20',
  minifySyntax: true,
  // The source stays in memory, a third of it blanks. Lines keep stack traces of use.
  minifyWhitespace: true,
  lineLimit: 120,
  legalComments: 'eof',
  logLevel: 'warning',
}

/** What `kprobe nodes` loads beside the program. Gives the packages in it. */
async function bundleClient() {
  const { metafile } = await build({
    ...COMMON,
    entryPoints: { 'client-node': 'src/inspect/nodes/client-node.ts' },
    outdir: 'dist',
    outExtension: { '.js': '.cjs' },
    // `debug` does without it, and only packages of developers bring it.
    external: ['supports-color'],
  })
  return packagesIn(metafile)
}

/** Leaves the file of bundleClient out of the program. */
const CLIENT_APART = {
  name: 'client-apart',
  setup: ({ onResolve }) => {
    onResolve({ filter: /\/client-node\.ts$/ }, () => ({ path: './client-node.cjs', external: true }))
  },
}

/**
 * One function, of which deploy/loader.mjs makes a script: V8 can keep the code of a script, and of no module before
 * Node 22. Modules that only some commands need are bundled as functions that run when they are asked for.
 */
async function bundle() {
  const { metafile } = await build({
    ...COMMON,
    entryPoints: { program: 'src/main.ts' },
    outdir: 'dist',
    supported: { 'dynamic-import': false },
    external: ['*.node', 'ffi-rs'],
    plugins: [CLIENT_APART],
    banner: { js: '(function (require, importMetaUrl) {' },
    footer: { js: '})' },
    define: {
      'import.meta.url': 'importMetaUrl',
      ...defines({ KPROBE_PACKAGES: PACKAGES_HERE }),
    },
  })
  const program = `${root}dist/program.js`
  const packages = packagesIn(metafile)
  requireListed(packages, program)
  requireAscii(program)
  const commandPackages = await bundleClient()
  const pagePackages = await bundlePage()
  const versions = versionsOf({ daemon: packages, commands: commandPackages, page: pagePackages })
  const text = readFileSync(program, 'utf8').replace(JSON.stringify(PACKAGES_HERE), () =>
    JSON.stringify(versions),
  )
  writeFileSync(program, withOwnLength(Buffer.from(text)))
  copyFileSync(`${root}deploy/loader.mjs`, `${root}dist/kprobe.mjs`)
  chmodSync(`${root}dist/kprobe.mjs`, 0o755)
  copyFileSync(`${root}deploy/kubectl-kprobe.mjs`, `${root}dist/kubectl-kprobe.mjs`)
  chmodSync(`${root}dist/kubectl-kprobe.mjs`, 0o755)
  for (const name of readdirSync(`${root}dist`))
    if (name.endsWith('.mjs') && !['kprobe.mjs', 'kubectl-kprobe.mjs'].includes(name))
      rmSync(`${root}dist/${name}`)
  const about = {
    version,
    commit: BUILD.KPROBE_COMMIT,
    date: BUILD.KPROBE_COMMIT_DATE,
    packages,
    commandPackages,
    pagePackages,
  }
  writeFileSync(`${root}dist/build.json`, `${JSON.stringify(about, null, 2)}\n`)
}

/** The daemon runs with the rights to write the node's firewall: what comes into it is decided, not found. */
function requireListed(found, program, listed = PROGRAM_PACKAGES) {
  const others = found.filter(key => !listed.includes(key))
  if (others.length === 0) return
  rmSync(program)
  throw new Error(`${program} contains packages that deploy/build.mjs does not list: ${others}`)
}

/** JSON for src/base/build-info.ts: names and versions of the packages at these keys of package-lock.json. */
function versionsOf(groups) {
  const lock = JSON.parse(readFileSync(`${root}package-lock.json`, 'utf8'))
  const textOf = key => `${key.replace(/^.*node_modules\//, '')} ${lock.packages[key].version}`
  return JSON.stringify(
    Object.fromEntries(Object.entries(groups).map(([name, keys]) => [name, keys.map(textOf)])),
  )
}

/** 16,000 today. */
const UI_COMPRESSED_BYTES_MAX = 50_000

/** The packages that may be in the page, which a browser runs; decision 0007 says why these. */
const PAGE_PACKAGES = ['node_modules/preact']

/** The web page, which the daemon reads at the first request. Gives the packages in it. */
async function bundlePage() {
  const { metafile } = await build({
    metafile: true,
    absWorkingDir: root,
    entryPoints: { page: 'src/ui/main.tsx' },
    outdir: 'dist/ui',
    bundle: true,
    format: 'esm',
    target: 'es2022',
    jsx: 'automatic',
    jsxImportSource: 'preact',
    define: defines(),
    minify: true,
    legalComments: 'eof',
    logLevel: 'warning',
  })
  for (const name of ['page.html', 'page.css'])
    copyFileSync(`${root}src/ui/${name}`, `${root}dist/ui/${name}`)
  const files = readdirSync(`${root}dist/ui`).map(name => readFileSync(`${root}dist/ui/${name}`))
  const bytes = files.reduce((sum, file) => sum + gzipSync(file).length, 0)
  if (bytes > UI_COMPRESSED_BYTES_MAX)
    throw new Error(`dist/ui has ${bytes} bytes compressed, more than ${UI_COMPRESSED_BYTES_MAX}`)
  const packages = packagesIn(metafile)
  requireListed(packages, `${root}dist/ui/page.js`, PAGE_PACKAGES)
  return packages
}

/** Keys in package-lock.json of the packages that a bundle contains code of. */
function packagesIn({ outputs }) {
  const inputs = Object.values(outputs).flatMap(output => Object.entries(output.inputs))
  const found = inputs.flatMap(([path, { bytesInOutput }]) => {
    const [folder] = /(?:node_modules\/(?:@[^/]+\/)?[^/]+\/)+/.exec(path) ?? []
    return folder === undefined || bytesInOutput === 0 ? [] : [folder.slice(0, -1)]
  })
  return [...new Set(found)].sort()
}

/** The loader reads Latin-1. esbuild escapes other letters in strings and in names, but not in regular expressions. */
function requireAscii(path) {
  const program = readFileSync(path)
  const at = program.findIndex(byte => byte > 0x7f)
  if (at < 0) return
  throw new Error(`${path} is not all ASCII: escape what follows "${program.toString('utf8', at - 40, at)}"`)
}

/**
 * Runs the program once, and keeps what V8 has compiled by then. Without that, a start is slower, and nothing else. The
 * environment and the kind of its outputs decide what runs: they are the same everywhere.
 */
function keepCode() {
  const log = `${root}dist/program.log`
  const argv = [...KEEP_CODE_FLAGS, `${root}deploy/keep-code.mjs`]
  try {
    const stdio = ['ignore', 'ignore', openSync(log, 'w')]
    execFileSync(process.execPath, argv, { stdio, env: KEEP_CODE_ENV, timeout: KEEP_CODE_MAX_MS })
  } catch (error) {
    console.error(
      `dist/ has no compiled code, and a start takes longer: ${error.message}\n${readFileSync(log, 'utf8')}`,
    )
  }
  rmSync(log)
}

/** V8 ignores kept code without a word: a process without flags must take it. */
function checkCode() {
  if (!existsSync(`${root}dist/${KEPT_CODE}`)) return
  const check = `const { readFileSync } = require('node:fs')
    const [program, cachedData] = [readFileSync('program.js', 'latin1'), readFileSync('${KEPT_CODE}')]
    const script = new (require('node:vm').Script)(program, { filename: 'program.js', cachedData })
    process.stdout.write(String(script.cachedDataRejected))`
  const rejected = execFileSync(process.execPath, ['-e', check], {
    cwd: `${root}dist`,
    encoding: 'utf8',
    env: {},
  })
  if (rejected !== 'false') console.error(`V8 rejects dist/${KEPT_CODE}, and a start takes longer`)
}

function placeAddon() {
  const built = `${root}build/Release/kprobe.node`
  if (!existsSync(built)) {
    console.error('the native addon is not built (build/Release/kprobe.node); run: npm run build')
    process.exit(1)
  }
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

/** One page a command, as npm installs them (`directories.man`). */
function writeManual() {
  const folder = `${root}dist/man`
  rmSync(folder, { recursive: true, force: true })
  mkdirSync(folder, { recursive: true })
  const page = words =>
    execFileSync(process.execPath, [`${root}dist/kprobe.mjs`, 'help', ...words, '--man'], {
      encoding: 'utf8',
    })
  const overview = page([])
  writeFileSync(`${folder}/kprobe.1`, overview)
  for (const [, command] of overview.matchAll(/^\.BR kprobe\\-(\w+) \(1\)/gm))
    writeFileSync(`${folder}/kprobe-${command}.1`, page([command]))
}

// Of other architectures and earlier builds, too: a package ships the whole folder.
for (const name of existsSync(`${root}dist`) ? readdirSync(`${root}dist`) : [])
  if (name.endsWith('.cache')) rmSync(`${root}dist/${name}`)
await bundle()
placeAddon()
keepCode()
checkCode()
linkCommand()
writeManual()
