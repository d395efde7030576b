#!/usr/bin/env node
// Builds etcd, kube-apiserver, kube-proxy, kubectl and the controller of EndpointSlices from their Go modules
// (control-plane/), each once per version:
//   node test/reference/build.mjs           builds what is missing
//   node test/reference/build.mjs --where   prints as JSON where each is, or why not; builds nothing
// Binaries in $KUBEBUILDER_ASSETS come first; the rest goes to $XDG_CACHE_HOME (~/.cache). Exit code 3: skipped.
import { spawn, spawnSync } from 'node:child_process'
import {
  accessSync,
  closeSync,
  constants,
  mkdirSync,
  openSync,
  readFileSync,
  renameSync,
  rmSync,
  writeSync,
} from 'node:fs'
import { homedir } from 'node:os'
import { delimiter, join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { fileURLToPath } from 'node:url'
import { Silence } from '../support/silence.mjs'

const SKIPPED = 3
const MODULES = fileURLToPath(new URL('control-plane/', import.meta.url))
const ETCD_MODULE = join(MODULES, 'etcd')
const kubernetes = required(MODULES, 'k8s.io/kubernetes')
const etcd = required(ETCD_MODULE, 'go.etcd.io/etcd/server/v3')
const folder = join(
  process.env.XDG_CACHE_HOME || join(homedir(), '.cache'),
  'kprobe/reference',
  `kubernetes-${kubernetes}-etcd-${etcd}`,
)
const [major, minor] = kubernetes.slice(1).split('.')
const KUBERNETES_FLAGS = [
  '-s -w',
  ...Object.entries({ gitVersion: kubernetes, gitMajor: major, gitMinor: minor }).map(
    ([name, value]) => `-X k8s.io/component-base/version.${name}=${value}`,
  ),
].join(' ')
const PROGRAMS = [
  ...[
    ['kube-proxy', './kube-proxy'],
    ['kube-apiserver', './kube-apiserver'],
    ['endpointslice-controller', './endpointslice-controller'],
    ['kubectl', 'k8s.io/kubernetes/cmd/kubectl'],
  ].map(([name, main]) => ({ name, module: MODULES, main, ldflags: KUBERNETES_FLAGS })),
  { name: 'etcd', module: ETCD_MODULE, main: '.', ldflags: '-s -w' },
]
/** Cold, on two processors; where they have other things to do, time counts for less. */
const BUILD_MAX_MS = 30 * 60_000
/** Between two signs of life of a build that goes on. */
const SIGN_MS = 60_000

if (process.argv.includes('--where')) console.log(JSON.stringify(where()))
else process.exitCode = await build()

function required(module, path) {
  const line = readFileSync(join(module, 'go.mod'), 'utf8').match(
    new RegExp(`^\\s*(?:require )?${path} (v\\S+)`, 'm'),
  )
  if (line === null) throw new Error(`${module}: no ${path}`)
  return line[1]
}

function where() {
  return Object.fromEntries(PROGRAMS.map(({ name }) => [name, find(name) ?? null]))
}

function find(name) {
  const folders = [process.env.KUBEBUILDER_ASSETS, folder].filter(Boolean)
  return folders.map(one => join(one, name)).find(isExecutable)
}

function isExecutable(file) {
  try {
    accessSync(file, constants.X_OK)
    return true
  } catch {
    return false
  }
}

async function build() {
  if (process.env.KPROBE_REFERENCE === 'off') return skip('KPROBE_REFERENCE is off')
  if (PROGRAMS.every(({ name }) => find(name) !== undefined)) return 0
  const trouble = goTrouble()
  if (trouble !== undefined) return skip(`${trouble}, and KUBEBUILDER_ASSETS and ${folder} have no binaries`)
  mkdirSync(folder, { recursive: true })
  const unlock = await lock(join(folder, '.building'))
  try {
    const missing = PROGRAMS.filter(({ name }) => find(name) === undefined)
    for (const program of missing)
      if (!(await isFetched(program))) return skip(`Go cannot get the modules of ${program.name} here`)
    for (const program of missing) if (!(await buildOne(program))) return 1
    return 0
  } finally {
    unlock()
  }
}

function skip(reason) {
  console.log(`skipped: ${reason}`)
  return SKIPPED
}

function goTrouble() {
  const wanted = readFileSync(join(MODULES, 'go.mod'), 'utf8').match(/^go (\d+)\.(\d+)/m)
  const run = spawnSync('go', ['env', 'GOVERSION'], { encoding: 'utf8', env: goEnvironment() })
  if (run.error !== undefined || run.status !== 0) return `there is no Go ${wanted[1]}.${wanted[2]}`
  const found = run.stdout.match(/^go(\d+)\.(\d+)/)
  const isEnough = found !== null && (found[1] - wanted[1] || found[2] - wanted[2]) >= 0
  return isEnough ? undefined : `Go ${wanted[1]}.${wanted[2]} is needed, this is ${run.stdout.trim()}`
}

/** Debian's packages keep newer versions of Go out of PATH. */
function goEnvironment() {
  return { ...process.env, PATH: [process.env.PATH, '/usr/local/go/bin'].join(delimiter) }
}

/** Gets the sources, and nothing that the program does not need. A machine without a way to them is no failure of ours. */
async function isFetched({ module, main }) {
  const { status } = await runGo(['list', '-deps', main], module)
  return status === 0
}

async function buildOne({ name, module, main, ldflags }) {
  process.stdout.write(`building ${name} ... `)
  const began = Date.now()
  const unfinished = join(folder, `.${name}.${process.pid}`)
  const args = ['build', '-trimpath', '-ldflags', ldflags, '-o', unfinished, main]
  const { status, stderr } = await runGo(args, module)
  if (status === 0) renameSync(unfinished, join(folder, name))
  else rmSync(unfinished, { force: true })
  console.log(status === 0 ? `${Math.round((Date.now() - began) / 1000)} s` : `failed\n${stderr}`)
  return status === 0
}

/** Resolves when Go ends, or is ended because it takes too long. Writes a dot now and then: who waits sees that it goes on. */
function runGo(args, cwd) {
  const child = spawn('nice', ['go', ...args], {
    cwd,
    env: goEnvironment(),
    stdio: ['ignore', 'ignore', 'pipe'],
  })
  let stderr = ''
  child.stderr.setEncoding('utf8').on('data', chunk => {
    stderr += chunk
  })
  const patience = new Silence()
  let signMs = performance.now()
  const timer = setInterval(() => {
    if (patience.isLongerThan(BUILD_MAX_MS)) child.kill()
    if (performance.now() - signMs < SIGN_MS) return
    signMs = performance.now()
    process.stdout.write('.')
  }, 1_000)
  return new Promise(resolve => {
    child.on('error', error => resolve({ status: 1, stderr: error.message }))
    child.on('close', status => resolve({ status, stderr }))
  }).finally(() => clearInterval(timer))
}

/** Builds one at a time: whoever comes second waits, and finds everything built. The lock of a dead process is void. */
async function lock(file) {
  for (const patience = new Silence(); !patience.isLongerThan(BUILD_MAX_MS); await sleep(500)) {
    try {
      const handle = openSync(file, 'wx')
      writeSync(handle, String(process.pid))
      closeSync(handle)
      return () => rmSync(file, { force: true })
    } catch (error) {
      if (error.code !== 'EEXIST') throw error
      if (!isAlive(file)) rmSync(file, { force: true })
    }
  }
  throw new Error(`another process has been building for too long: ${file}`)
}

function isAlive(file) {
  try {
    const pid = Number(readFileSync(file, 'utf8'))
    // Empty for the moment between its creation and the number.
    if (pid !== 0) process.kill(pid, 0)
    return true
  } catch {
    return false
  }
}
