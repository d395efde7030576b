// Programs that Go builds from published modules, each once per version, into a folder of the cache.
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
import { Silence } from './silence.mjs'

/** The exit code of a build that cannot run here. */
export const SKIPPED = 3

/** Where everything that is built or downloaded for the tests lives. */
export const CACHE = join(process.env.XDG_CACHE_HOME || join(homedir(), '.cache'), 'kprobe')

/** Cold, on two processors; where they have other things to do, time counts for less. */
const BUILD_MAX_MS = 30 * 60_000
/** Between two signs of life of a build that goes on. */
const SIGN_MS = 60_000

/**
 * @typedef {object} GoProgram
 * @property {string} name Of the binary.
 * @property {string} module Folder with its go.mod.
 * @property {string} main Import path of its main package, or of the tests with `isTest`.
 * @property {string} ldflags
 * @property {string} [tags]
 * @property {boolean} [isTest] `go test -c` builds it.
 */

/** The version of `path` that the go.mod in the folder `module` requires. */
export function requiredVersion(module, path) {
  const line = readFileSync(join(module, 'go.mod'), 'utf8').match(
    new RegExp(`^\\s*(?:require )?${path} (v\\S+)`, 'm'),
  )
  if (line === null) throw new Error(`${module}: no ${path}`)
  return line[1]
}

/** Where Go has put the sources of a module that `module` requires. */
export function moduleFolder(module, path) {
  const run = spawnSync('go', ['list', '-m', '-f', '{{.Dir}}', path], {
    cwd: module,
    encoding: 'utf8',
    env: goEnvironment(),
  })
  if (run.status !== 0) throw new Error(`${module}: go list -m ${path}: ${run.error?.message ?? run.stderr}`)
  return run.stdout.trim()
}

/** Linker flags that let a program of Kubernetes know its version. Without it, it calls itself v0.0.0 and lacks features. */
export function kubernetesFlags(version) {
  const [major, minor] = version.slice(1).split('.')
  return [
    '-s -w',
    ...Object.entries({ gitVersion: version, gitMajor: major, gitMinor: minor }).map(
      ([name, value]) => `-X k8s.io/component-base/version.${name}=${value}`,
    ),
  ].join(' ')
}

/** The program called `name` in the first of `folders` that has it; undefined when none has. */
export function findProgram(name, folders) {
  return folders
    .filter(Boolean)
    .map(one => join(one, name))
    .find(isExecutable)
}

function isExecutable(file) {
  try {
    accessSync(file, constants.X_OK)
    return true
  } catch {
    return false
  }
}

/**
 * Builds `programs` into `folder`, one after the other, and writes a line about each. Gives an exit code: 0, 1 when one
 * cannot be built, SKIPPED when this machine has no Go, or no way to the modules.
 */
export async function buildPrograms({ programs, folder }) {
  const isMissing = ({ name }) => findProgram(name, [folder]) === undefined
  if (!programs.some(isMissing)) return 0
  const trouble = goTrouble(programs)
  if (trouble !== undefined) return skip(`${trouble}, and ${folder} lacks ${programs.find(isMissing).name}`)
  mkdirSync(folder, { recursive: true })
  const unlock = await lock(join(folder, '.building'))
  try {
    const missing = programs.filter(isMissing)
    for (const program of missing) {
      const { status, stderr } = await fetchModules(program)
      if (status !== 0)
        return skip(`Go cannot get the modules of ${program.name} here: ${stderr.trim().split('\n').at(-1)}`)
    }
    for (const program of missing) if (!(await buildOne(program, folder))) return 1
    return 0
  } finally {
    unlock()
  }
}

export function skip(reason) {
  console.log(`skipped: ${reason}`)
  return SKIPPED
}

/** Every program has to be built by the newest Go that one of them asks for. */
function goTrouble(programs) {
  const wanted = programs
    .map(({ module }) => goVersion(readFileSync(join(module, 'go.mod'), 'utf8'), 'go '))
    .sort(compare)
    .at(-1)
  const name = `Go ${wanted.join('.')}`
  const run = spawnSync('go', ['env', 'GOVERSION'], { encoding: 'utf8', env: goEnvironment() })
  if (run.error !== undefined || run.status !== 0) return `there is no ${name}`
  const isEnough = compare(goVersion(run.stdout, 'go'), wanted) >= 0
  return isEnough ? undefined : `${name} is needed, this is ${run.stdout.trim()}`
}

/** The numbers of the first version behind `word` at the beginning of a line. */
function goVersion(text, word) {
  const found = text.match(new RegExp(`^${word}(\\d+)\\.(\\d+)(?:\\.(\\d+))?`, 'm'))
  return found === null ? [0, 0] : found.slice(1).filter(Boolean).map(Number)
}

function compare(a, b) {
  const different = a.findIndex((number, index) => number !== (b[index] ?? 0))
  return different < 0 ? 0 : a[different] - (b[different] ?? 0)
}

/** Debian's packages keep newer versions of Go out of PATH. */
function goEnvironment() {
  return { ...process.env, PATH: [process.env.PATH, '/usr/local/go/bin'].join(delimiter) }
}

/** Gets the sources, and nothing that the program does not need. A machine without a way to them is no failure of ours. */
function fetchModules({ module, main, isTest = false }) {
  return runGo(['list', ...(isTest ? ['-test'] : []), '-deps', main], module)
}

async function buildOne({ name, module, main, ldflags, tags, isTest = false }, folder) {
  process.stdout.write(`building ${name} ... `)
  const began = Date.now()
  const unfinished = join(folder, `.${name}.${process.pid}`)
  const args = [
    ...(isTest ? ['test', '-c', '-vet=off'] : ['build']),
    '-trimpath',
    ...(tags === undefined ? [] : ['-tags', tags]),
    ...['-ldflags', ldflags, '-o', unfinished, main],
  ]
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
