#!/usr/bin/env node
// npm run attack [-- NAME ...] [--seed N]: runs attacks in their long form, and prints what each tried, what held, what fell.
import { spawn } from 'node:child_process'
import { mkdtempSync, readdirSync, readFileSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { parseArgs } from 'node:util'

const ROOT = fileURLToPath(new URL('../..', import.meta.url))
const HERE = 'test/attack'
const SUFFIX = '.test.ts'
/** An attack that takes longer hangs. */
const LIMIT_MS = 30 * 60_000
const FAILURE_LINES = 12

/** Attacks on values, and those on a daemon in namespaces of their own. */
const ATTACKS = [
  ...namesIn(HERE).map(name => ({ name, file: `${HERE}/${name}${SUFFIX}`, project: 'unit', within: [] })),
  ...namesIn(`${HERE}/kernel`).map(name => ({
    name,
    file: `${HERE}/kernel/${name}${SUFFIX}`,
    project: 'faults',
    within: ['unshare', '-Urnm'],
  })),
]

function namesIn(folder) {
  return readdirSync(join(ROOT, folder))
    .filter(name => name.endsWith(SUFFIX))
    .map(name => name.slice(0, -SUFFIX.length))
    .sort()
}

function request() {
  try {
    const { values, positionals } = parseArgs({
      options: { seed: { type: 'string' } },
      allowPositionals: true,
    })
    const seed = Number(values.seed ?? process.env.KPROBE_SEED ?? 1)
    const unknown = positionals.filter(name => !ATTACKS.some(attack => attack.name === name))
    if (!Number.isSafeInteger(seed) || seed < 0) throw new Error(`--seed ${values.seed} is no whole number`)
    if (unknown.length > 0)
      throw new Error(`no such attack: ${unknown}; there are: ${ATTACKS.map(({ name }) => name).join(', ')}`)
    return {
      seed,
      chosen: ATTACKS.filter(({ name }) => positionals.length === 0 || positionals.includes(name)),
    }
  } catch (error) {
    console.error(error.message)
    process.exit(2)
  }
}

/** Runs one attack; gives its tests as vitest reports them, or why there is no report. */
async function run({ file, project, within }, seed) {
  const folder = mkdtempSync(join(tmpdir(), 'kprobe-attack-'))
  try {
    const report = join(folder, 'report.json')
    const vitest = join(ROOT, 'node_modules/.bin/vitest')
    const options = ['run', '--project', project, '--reporter=json', `--outputFile=${report}`]
    const [command, ...args] = [...within, vitest, ...options, file]
    const child = spawn(command, args, {
      cwd: ROOT,
      stdio: ['ignore', 'ignore', 'inherit'],
      timeout: LIMIT_MS,
      env: { ...process.env, KPROBE_ATTACK: 'long', KPROBE_SEED: String(seed), NO_COLOR: '1' },
    })
    const why = await new Promise(resolve => {
      child.on('error', error => resolve(error.message))
      child.on('exit', (code, signal) => resolve(`vitest ended with ${signal ?? code}`))
    })
    const [result] = JSON.parse(readFileSync(report, 'utf8')).testResults
    return result === undefined || result.assertionResults.length === 0
      ? { why: result?.message || why }
      : { tests: result.assertionResults }
  } catch (error) {
    return { why: error.message }
  } finally {
    rmSync(folder, { recursive: true, force: true })
  }
}

function triedText(tests) {
  const counts = new Map()
  for (const { meta } of tests)
    for (const [name, count] of Object.entries(meta?.tried ?? {})) {
      const before = counts.get(name)
      counts.set(name, before === undefined ? count : isMost(name) ? Math.max(before, count) : before + count)
    }
  return (
    [...counts].map(([name, count]) => `${name} ${count.toLocaleString('en')}`).join(', ') ||
    'nothing counted'
  )
}

function isMost(name) {
  return /^(most|slowest|longest) /.test(name)
}

/** Prints the report of one attack; gives whether something fell. */
function tell(name, seed, { tests = [], why }, seconds) {
  const fell = tests.filter(({ status }) => status === 'failed')
  const skipped = tests.filter(({ status }) => status !== 'failed' && status !== 'passed')
  console.log(`== ${name}, seed ${seed}, ${seconds} s\ntried: ${triedText(tests)}`)
  for (const { fullName } of tests.filter(({ status }) => status === 'passed'))
    console.log(`held: ${fullName}`)
  for (const { fullName } of skipped) console.log(`not tried: ${fullName}`)
  for (const { fullName, failureMessages } of fell)
    console.log(
      `FELL: ${fullName}\n${failureMessages.join('\n').split('\n').slice(0, FAILURE_LINES).join('\n')}`,
    )
  if (why !== undefined) console.log(`FELL: no report: ${why}`)
  const hasFallen = why !== undefined || fell.length > 0
  if (hasFallen) console.log(`again: npm run attack -- ${name} --seed ${seed}`)
  return hasFallen
}

const { seed, chosen } = request()
const fallen = []
for (const attack of chosen) {
  process.stderr.write(`${attack.name} ...\n`)
  const beganMs = performance.now()
  const outcome = await run(attack, seed)
  if (tell(attack.name, seed, outcome, Math.round((performance.now() - beganMs) / 1000)))
    fallen.push(attack.name)
}
console.log(
  `attacks: ${chosen.length - fallen.length} held, ${fallen.length} fell${fallen.map(name => ` ${name}`).join()}`,
)
process.exitCode = fallen.length > 0 ? 1 : 0
