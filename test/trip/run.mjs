#!/usr/bin/env node
// Lists the files of src/ that one EndpointSlice event passes from the socket of the API server to sendmsg:
// npm run trip [-- MODE [--functions]]. Fails if nftables mode passes more than FILES_MAX.
import { fork, spawnSync } from 'node:child_process'
import { copyFileSync, mkdirSync, mkdtempSync, readFileSync, rmSync } from 'node:fs'
import { dirname, join } from 'node:path'
import { fileURLToPath, pathToFileURL } from 'node:url'
import { parseArgs } from 'node:util'
import { build } from 'esbuild'
import { requireBuild } from '../support/require-build.mjs'

const here = dirname(fileURLToPath(import.meta.url))
const root = join(here, '../..')
const { values: options, positionals } = parseArgs({
  options: { functions: { type: 'boolean', default: false } },
  allowPositionals: true,
})
const [mode = 'nftables'] = positionals
const ADDON = 'build/Release/kprobe.node'
requireBuild([ADDON])

if (process.env.KPROBE_TRIP_INSIDE !== '1') {
  const { status } = spawnSync('unshare', ['-Urnm', process.execPath, ...process.argv.slice(1)], {
    stdio: 'inherit',
    env: { ...process.env, KPROBE_TRIP_INSIDE: '1' },
  })
  process.exit(status ?? 1)
}

/** In nftables mode, the default: a reader of the hot path has to open this many. */
const FILES_MAX = 57
/** Each event is one of them; a file that only a timer needs is not in all. */
const EVENTS = 4
/** A commit is longer than the request for the generation and the empty batch before it. */
const COMMIT_BYTES_MIN = 100
/** Of each wait. */
const WAIT_MS = 120_000
const BUNDLE = 'trip-kprobe.mjs'

const cache = join(root, '.cache')
mkdirSync(cache, { recursive: true })
const folder = mkdtempSync(join(cache, 'trip-'))
const addon = join(folder, 'kprobe.node')

try {
  spawnSync('ip', ['link', 'set', 'lo', 'up'])
  await report(await recordTrips())
} catch (error) {
  console.error(`no trip was recorded: ${error.message}`)
  process.exitCode = 1
} finally {
  rmSync(folder, { recursive: true })
}

async function bundle(source, name) {
  const outfile = join(folder, name)
  await build({
    absWorkingDir: root,
    entryPoints: [source],
    outfile,
    bundle: true,
    platform: 'node',
    format: 'esm',
    target: 'node20',
    external: ['*.node', 'ffi-rs'],
    banner: {
      js: "import { createRequire as __createRequire } from 'node:module'; const require = __createRequire(import.meta.url);",
    },
    logLevel: 'warning',
  })
  return outfile
}

/** Gives, for each event, the files of which a function ran, with the names of these functions. */
async function recordTrips() {
  copyFileSync(join(root, ADDON), addon)
  const path = await bundle('src/main.ts', BUNDLE)
  const { startCluster } = await import(pathToFileURL(await bundle('test/trip/cluster.ts', 'cluster.mjs')))
  const kubeconfig = join(folder, 'kubeconfig')
  const cluster = await startCluster(kubeconfig)
  const flags = ['--hostname-override=node-0', `--proxy-mode=${mode}`, '--min-sync-period=1ms']
  const child = fork(path, ['run', `--kubeconfig=${kubeconfig}`, '--admin-socket=', ...flags], {
    execArgv: ['--import', pathToFileURL(join(here, 'recorder.mjs')).href],
    env: {
      ...process.env,
      KPROBE_TRIP_BUNDLE: BUNDLE,
      KPROBE_TRIP_ADDON: addon,
      KPROBE_TRIP_BYTES_MIN: String(COMMIT_BYTES_MIN),
    },
    silent: true,
  })
  try {
    await firstSyncOf(child)
    const fileAt = filesOf(readFileSync(path, 'utf8'))
    const trips = []
    for (let event = 0; event < EVENTS; event++) {
      await new Promise(done => setTimeout(done, 1_500))
      const armed = answerOf(child, 'answer of the recorder')
      child.send({})
      await armed
      const answer = answerOf(child, `commit after event ${event + 1}`)
      cluster.change(event % 2 === 0)
      const { functions } = await answer
      trips.push(byFile(functions, fileAt))
    }
    return trips
  } finally {
    await end(child)
    await cluster.close()
  }
}

function byFile(functions, fileAt) {
  const files = new Map()
  for (const { name, offset } of functions) {
    const file = fileAt(offset)
    if (file?.startsWith('src/')) files.set(file, new Set(files.get(file)).add(name))
  }
  return files
}

/** Resolves with the next message of kprobe's recorder. */
function answerOf(child, what) {
  return within(child, what, done => {
    child.once('message', done)
    return () => child.off('message', done)
  })
}

/** Resolves with the line that says that the first commit is done. */
function firstSyncOf(child) {
  let text = ''
  return within(child, 'first sync', done => {
    const take = piece => {
      text += piece
      if (text.includes('first sync complete')) done()
    }
    child.stdout.on('data', take)
    child.stderr.on('data', take)
    // Later lines are read too, because a full pipe would stop kprobe.
  }).catch(error => {
    throw new Error(`${error.message}; it logged:\n${text}`)
  })
}

/** Rejects when kprobe ends, or when nothing calls `done` in time. */
async function within(child, what, start) {
  const clean = []
  try {
    return await new Promise((done, fail) => {
      const exited = (code, signal) => fail(new Error(`kprobe ended before ${what} (${signal ?? code})`))
      child.once('exit', exited)
      const timer = setTimeout(() => fail(new Error(`no ${what} within ${WAIT_MS / 1e3} s`)), WAIT_MS)
      clean.push(
        () => child.off('exit', exited),
        () => clearTimeout(timer),
      )
      const stop = start(done)
      if (stop !== undefined) clean.push(stop)
    })
  } finally {
    for (const step of clean) step()
  }
}

/** Ends kprobe, which may have ended on its own before. */
async function end(child) {
  if (child.exitCode !== null || child.signalCode !== null) return
  const ended = new Promise(done => child.once('exit', done))
  child.kill('SIGTERM')
  const timer = setTimeout(() => child.kill('SIGKILL'), WAIT_MS)
  await ended
  clearTimeout(timer)
}

/** esbuild writes the path of each module before its text. */
function filesOf(text) {
  const starts = [...text.matchAll(/^\/\/ ([\w./@-]+\.[cm]?[jt]s)$/gm)].map(({ 1: file, index }) => ({
    file,
    index,
  }))
  return offset => starts.findLast(({ index }) => index <= offset)?.file
}

async function report(trips) {
  const files = [...trips[0].keys()].filter(file => trips.every(trip => trip.has(file))).sort()
  let lines = 0
  for (const file of files) {
    const count = readFileSync(join(root, file), 'utf8').split('\n').length - 1
    lines += count
    console.log(`${String(count).padStart(5)} ${file}`)
    if (options.functions) console.log(`      ${commonTo(trips.map(trip => trip.get(file))).join(' ')}`)
  }
  console.log(
    `${files.length} files, ${lines} lines: one EndpointSlice event from the socket to sendmsg, ${mode} mode`,
  )
  if (mode !== 'nftables' || files.length <= FILES_MAX) return
  console.error(`more than ${FILES_MAX} files`)
  process.exitCode = 1
}

function commonTo([first, ...more]) {
  return [...first].filter(name => name !== '' && more.every(names => names.has(name)))
}
