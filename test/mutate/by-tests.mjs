#!/usr/bin/env node
// npm run mutate:tests: breaks lines of src/, one at a time, and asks the unit tests that guard it. See HELP below.
import { spawn } from 'node:child_process'
import { appendFileSync, readdirSync, readFileSync, rmSync, statSync, writeFileSync } from 'node:fs'
import { join, posix } from 'node:path'
import { parseArgs } from 'node:util'
import { loadSource } from '../../deploy/load-source.mjs'
import { BROAD, guardsOf, importsOf } from '../stages/files.mjs'
import { copyTree } from '../support/tree-copy.mjs'

const HELP = `npm run mutate:tests -- [--seed N] [--count N] [--file PATH] [--jobs N] [--log PATH]

Breaks COUNT lines of src/, one at a time in a copy of the tree, and runs the unit tests that guard the file, as
\`npm run ok -- --changed\` does: the nearest twelve of them, and the tracer of scenarios. SEED chooses the lines: each
file gets its share, so that the same seed is comparable on another commit. It prints what becomes of each line:

  noticed      a test fails, or does not end
  not noticed  all of them pass
  invalid      the compiler refuses it

  --seed N     default 1
  --count N    default 200; each takes about ten seconds of processor time
  --file PATH  only files whose path contains PATH
  --jobs N     copies that work side by side, default 1
  --log PATH   append the results to PATH as well
  --help       print this
`
/** The nearest ones: more of them only take longer. */
const GUARDS_MAX = 12
/** A test that waits for ever, beside a busy machine. */
const TEST_MS = 60_000
const RUN_MS = 600_000

function request() {
  const { values } = parseArgs({
    options: {
      seed: { type: 'string', default: '1' },
      count: { type: 'string', default: '200' },
      jobs: { type: 'string', default: '1' },
      file: { type: 'string', default: '' },
      log: { type: 'string' },
      help: { type: 'boolean', default: false },
    },
  })
  const [seed, count, jobs] = [values.seed, values.count, values.jobs].map(Number)
  if (![seed, count, jobs].every(Number.isSafeInteger))
    throw new Error('--seed, --count, --jobs take numbers')
  return { ...values, seed, count, jobs }
}

/** The unit tests that guard a file, the nearest first: its own, those of its folder, those that import it, then the short ones. */
function guardsNear(path) {
  const mirrored = path.replace(/^src\//, 'test/unit/').replace(/\.ts$/, '')
  const rank = test => {
    if (test.startsWith(`${mirrored}.`) || test.startsWith(`${mirrored}-`)) return 0
    if (posix.dirname(test) === posix.dirname(mirrored)) return 1
    return importsOf(test).includes(path) ? 2 : 3
  }
  const guards = guardsOf([path])
    .plain.map(test => ({ test, rank: rank(test), size: statSync(test).size }))
    .sort((a, b) => a.rank - b.rank || a.size - b.size)
    .map(({ test }) => test)
  const near = guards.slice(0, GUARDS_MAX)
  return guards.includes(BROAD) && !near.includes(BROAD) ? [...near, BROAD] : near
}

/** A copy of the tree in which lines are broken. */
class Bench {
  #copy = copyTree()
  /** Whether test files pass with nothing broken. */
  #passes = new Map()

  async judge(mutation, broken, guards) {
    const path = join(this.#copy, mutation.path)
    const whole = readFileSync(path, 'utf8')
    try {
      writeFileSync(path, broken)
      if ((await this.#run('tsc', ['-p', '.'])) !== 0) return { result: 'invalid' }
      for (let asked = guards; asked.length > 0; ) {
        const failed = await this.#failing(asked)
        if (failed.length === 0) return { result: 'not noticed' }
        writeFileSync(path, whole)
        const [test] = failed
        if (test === undefined || (await this.#passesWhole(test))) return { result: 'noticed', by: test }
        writeFileSync(path, broken)
        asked = asked.filter(each => each !== test)
      }
      return { result: 'not noticed' }
    } finally {
      writeFileSync(path, whole)
    }
  }

  async #passesWhole(test) {
    if (!this.#passes.has(test)) this.#passes.set(test, (await this.#failing([test])).length === 0)
    return this.#passes.get(test)
  }

  /** The first of these files that fails; `[undefined]` if the run ends without a word. */
  async #failing(tests) {
    const output = join(this.#copy, 'result.json')
    rmSync(output, { force: true })
    const limits = [`--testTimeout=${TEST_MS}`, `--hookTimeout=${TEST_MS}`, '--bail=1']
    const words = ['run', '--project', 'unit*', '--reporter=json', `--outputFile=${output}`, ...limits]
    if ((await this.#run('vitest', [...words, ...tests])) === 0) return []
    const { testResults = [] } = readJson(output)
    const failed = testResults.filter(({ status }) => status === 'failed')
    return failed.length === 0 ? [undefined] : failed.map(({ name }) => posix.relative(this.#copy, name))
  }

  /** The exit code; another one for a run that does not end. */
  #run(name, words) {
    const command = join(process.cwd(), 'node_modules/.bin', name)
    const child = spawn(command, words, { cwd: this.#copy, stdio: 'ignore', detached: true })
    const limit = setTimeout(() => process.kill(-child.pid, 'SIGKILL'), RUN_MS)
    return new Promise((resolve, reject) => {
      child.once('error', reject).once('exit', code => {
        clearTimeout(limit)
        resolve(code)
      })
    })
  }
}

function readJson(path) {
  try {
    return JSON.parse(readFileSync(path, 'utf8'))
  } catch (error) {
    if (error.code === 'ENOENT') return {}
    throw error
  }
}

/** The places that can be changed in files that unit tests guard. */
function guardedPlaces({ file }, mutationsOf) {
  const paths = readdirSync('src', { recursive: true })
    .map(name => posix.join('src', name))
    .filter(path => path.endsWith('.ts') && !path.startsWith('src/ui/') && path.includes(file))
    .sort()
  const guards = new Map(paths.map(path => [path, guardsNear(path)]))
  const guarded = paths.filter(path => guards.get(path).length > 0)
  console.log(`${guarded.length} of ${paths.length} files have unit tests that import them`)
  return { guards, places: guarded.flatMap(path => mutationsOf(path, readFileSync(path, 'utf8'))) }
}

async function main(options) {
  const { chosenByLine, mutationsOf, withMutation } = await loadSource('test/mutate/sites.ts')
  const { guards, places } = guardedPlaces(options, mutationsOf)
  const left = [...chosenByLine(places, options)]
  console.log(`${left.length} lines, seed ${options.seed}`)
  const counts = new Map(['noticed', 'not noticed', 'invalid'].map(result => [result, 0]))
  const missed = []
  const report = text => {
    console.log(text)
    if (options.log !== undefined) appendFileSync(options.log, `${text}\n`)
  }
  const work = async () => {
    const bench = new Bench()
    for (let its = left.shift(); its !== undefined; its = left.shift()) {
      const broken = withMutation(readFileSync(its.path, 'utf8'), its)
      const { result, by = '' } = await bench.judge(its, broken, guards.get(its.path))
      const short = text => text.replaceAll(/\s+/g, ' ').slice(0, 80)
      const text = `${its.path}:${its.line}\t${its.kind}: ${short(its.before)} -> ${short(its.after)}`
      counts.set(result, counts.get(result) + 1)
      if (result === 'not noticed') missed.push(text)
      report(`${result}\t${text}\t${by}`)
    }
  }
  await Promise.all(Array.from({ length: Math.max(1, options.jobs) }, work))
  report(`\n| result | lines |\n|---|---|`)
  for (const [result, number] of counts) report(`| ${result} | ${number} |`)
  report(['\nnot noticed:', ...missed.sort()].join('\n  '))
}

const options = request()
if (options.help) process.stdout.write(HELP)
else await main(options)
