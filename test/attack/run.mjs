#!/usr/bin/env node
// npm run attack [-- NAME ...] [--seed N] [--minutes N]: runs attacks in their long form, and prints what each tried, what
// held, what fell.
import { spawn } from 'node:child_process'
import { mkdtempSync, readdirSync, readFileSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { parseArgs } from 'node:util'
import { requireBuild } from '../support/require-build.mjs'

const ROOT = fileURLToPath(new URL('../..', import.meta.url))
const HERE = 'test/attack'
const SUFFIX = /(\.long)?\.test\.ts$/
const MINUTES = 30
/** An attack that goes on for so long after its time hangs. */
const GRACE_MS = 5 * 60_000
const FAILURE_LINES = 12
const STILL_EVERY_MS = 30_000

/**
 * Attacks on a daemon in namespaces of their own, and those on values. The latter try as much as there is time for, and
 * come last: what the others leave is theirs.
 */
const ATTACKS = [
  ...filesIn(`${HERE}/kernel`).map(file => ({ ...file, project: 'faults', within: ['unshare', '-Urnm'] })),
  ...filesIn(HERE).map(file => ({ ...file, project: 'unit', within: [] })),
]

function filesIn(folder) {
  const tests = readdirSync(join(ROOT, folder)).filter(name => SUFFIX.test(name))
  return tests.sort().map(name => ({ name: name.replace(SUFFIX, ''), file: `${folder}/${name}` }))
}

function request() {
  try {
    const { values, positionals } = parseArgs({
      options: { seed: { type: 'string' }, minutes: { type: 'string' } },
      allowPositionals: true,
    })
    const seed = Number(values.seed ?? process.env.KPROBE_SEED ?? 1)
    const minutes = Number(values.minutes ?? MINUTES)
    const unknown = positionals.filter(name => !ATTACKS.some(attack => attack.name === name))
    if (!Number.isSafeInteger(seed) || seed < 0) throw new Error(`--seed ${values.seed} is no whole number`)
    if (!(minutes > 0)) throw new Error(`--minutes ${values.minutes} is no time`)
    if (unknown.length > 0)
      throw new Error(`no such attack: ${unknown}; there are: ${ATTACKS.map(({ name }) => name).join(', ')}`)
    return {
      seed,
      minutes,
      chosen: ATTACKS.filter(({ name }) => positionals.length === 0 || positionals.includes(name)),
    }
  } catch (error) {
    console.error(error.message)
    process.exit(2)
  }
}

/** Runs one attack; gives its tests as vitest reports them, or why there is no report. */
async function run({ name, file, project, within }, { seed, timeMs }) {
  const beganMs = performance.now()
  const still = setInterval(
    () => process.stderr.write(`${name}: ${Math.round((performance.now() - beganMs) / 1000)} s so far\n`),
    STILL_EVERY_MS,
  )
  const folder = mkdtempSync(join(tmpdir(), 'kprobe-attack-'))
  try {
    const report = join(folder, 'report.json')
    const vitest = join(ROOT, 'node_modules/.bin/vitest')
    const options = ['run', '--project', project, '--reporter=json', `--outputFile=${report}`]
    const [command, ...args] = [...within, vitest, ...options, file]
    const child = spawn(command, args, {
      cwd: ROOT,
      stdio: ['ignore', 'ignore', 'inherit'],
      timeout: timeMs + GRACE_MS,
      env: {
        ...process.env,
        KPROBE_ATTACK: 'long',
        KPROBE_ATTACK_MS: String(timeMs),
        KPROBE_SEED: String(seed),
        NO_COLOR: '1',
      },
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
    clearInterval(still)
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
  const held = tests.filter(({ status }) => status === 'passed')
  const skipped = tests.filter(({ status }) => status !== 'failed' && status !== 'passed')
  console.log(
    `== ${name}, seed ${seed}, ${seconds} s: ${held.length} held, ${fell.length} fell; tried: ${triedText(tests)}`,
  )
  for (const { fullName } of held) console.log(`held: ${fullName}`)
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

const { seed, minutes, chosen } = request()
if (chosen.some(({ project }) => project === 'faults')) requireBuild()
const endMs = performance.now() + minutes * 60_000
const fallen = []
for (const [index, attack] of chosen.entries()) {
  const beganMs = performance.now()
  // What an attack leaves of its part goes to those behind it.
  const timeMs = Math.round(Math.max(1, endMs - beganMs) / (chosen.length - index))
  process.stderr.write(
    `${attack.name}: attack ${index + 1} of ${chosen.length}, up to ${Math.ceil(timeMs / 1000)} s\n`,
  )
  const outcome = await run(attack, { seed, timeMs })
  if (tell(attack.name, seed, outcome, Math.round((performance.now() - beganMs) / 1000)))
    fallen.push(attack.name)
}
console.log(
  `attacks: ${chosen.length - fallen.length} held, ${fallen.length} fell${fallen.map(name => ` ${name}`).join()}`,
)
process.exitCode = fallen.length > 0 ? 1 : 0
