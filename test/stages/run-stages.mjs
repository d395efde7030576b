// Runs stages side by side, each with its output in a file, and says what came of them. Nothing here knows which stages
// there are: see stages.mjs.
import { spawn } from 'node:child_process'
import { closeSync, mkdtempSync, openSync, readFileSync, rmSync, statSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { Silence } from '../support/silence.mjs'
import { countsOf, failureReport, firstFailure, skipReason } from './log.mjs'

const LOOK_EVERY_MS = 200
/** Between a polite end and one by force. */
const GRACE_MS = 10_000
/** USER_HZ is 100 on every Linux that Node runs on. */
const TICK_MS = 10

/**
 * @typedef {object} Stage
 * @property {string} name
 * @property {readonly string[]} command
 * @property {Readonly<Record<string, string>>} [env]
 * @property {number} silentSeconds The longest time without output, on an idle machine: a busy one gets more.
 * @property {number} load Processors that it keeps busy.
 * @property {string} [script] npm script that takes test files.
 * @property {() => Promise<void>} [ready] What has to end before the stage begins; nothing is held up by it.
 */

/**
 * Runs `stages`, in their order as far as `processors` go, and reports each one to `write` when it ends. Gives the number
 * of failed stages. The last lines are the first failure of each failed stage, the command that repeats it, and counts.
 */
export async function runStages({ stages, processors, write, signal }) {
  const logs = mkdtempSync(join(tmpdir(), 'kprobe-stages-'))
  try {
    const reports = await runAll({ stages, processors, write, signal, logs })
    if (signal?.aborted) return reports.length
    summarize(reports, write)
    return reports.filter(({ outcome }) => outcome === 'FAIL').length
  } finally {
    rmSync(logs, { recursive: true, force: true })
  }
}

async function runAll({ stages, processors, write, signal, logs }) {
  const waiting = stages.map(stage => ({ stage, isReady: stage.ready === undefined }))
  const running = new Set()
  const reports = []
  const takeCpu = cpuMeter()
  let busy = 0
  let wake
  const next = () => wake?.()
  for (const one of waiting)
    one.stage.ready?.().then(() => {
      one.isReady = true
      next()
    })
  while ((waiting.length > 0 || running.size > 0) && !(signal?.aborted && running.size === 0)) {
    const changed = new Promise(resolve => {
      wake = resolve
    })
    const index = nextOf(waiting, busy, processors)
    if (index >= 0 && !signal?.aborted) {
      const [{ stage }] = waiting.splice(index, 1)
      busy += stage.load
      running.add(stage)
      runStage(stage, { log: join(logs, `${stage.name}.log`), signal, takeCpu }).then(report => {
        running.delete(stage)
        busy -= stage.load
        reports.push(report)
        if (!signal?.aborted) announce(report, write)
        next()
      })
    } else await changed
  }
  return reports
}

/** The first stage that is ready, when it fits: nothing smaller goes ahead of it but what keeps no processor busy. */
function nextOf(waiting, busy, processors) {
  const first = waiting.findIndex(({ isReady, stage }) => isReady && stage.load > 0)
  const fits = first >= 0 && (busy === 0 || busy + waiting[first].stage.load <= processors)
  return fits ? first : waiting.findIndex(({ isReady, stage }) => isReady && stage.load === 0)
}

/** Runs one stage in a process group of its own, so that nothing it started is left behind. */
async function runStage(stage, { log, signal, takeCpu }) {
  const began = performance.now()
  const output = openSync(log, 'a')
  const [file, ...args] = stage.command
  const child = spawn(file, args, {
    stdio: ['ignore', output, output],
    detached: true,
    env: { ...process.env, ...stage.env },
  })
  closeSync(output)
  let trouble
  const end = why => {
    trouble ??= why
    killGroup(child.pid, 'SIGTERM')
    setTimeout(() => killGroup(child.pid, 'SIGKILL'), GRACE_MS).unref()
  }
  const stopWatching = watchSilence(log, stage.silentSeconds, () =>
    end(`ended, because it wrote nothing for ${stage.silentSeconds} s`),
  )
  const onAbort = () => end('interrupted')
  signal?.addEventListener('abort', onAbort)
  const code = await new Promise(resolve => {
    child.on('error', error => {
      trouble = error.message
      resolve(127)
    })
    child.on('exit', (status, by) => resolve(status ?? by))
  })
  const cpuMs = takeCpu()
  stopWatching()
  signal?.removeEventListener('abort', onAbort)
  killGroup(child.pid, 'SIGKILL')
  const text = readFileSync(log, 'utf8')
  return reportOf(stage, { code, trouble, text, ms: performance.now() - began, cpuMs })
}

/** See proc_pid_stat(5): Linux counts a child's time, and that of all it has waited for, when the child is waited for. */
function childrenCpuMs() {
  const [, rest = ''] = readFileSync('/proc/self/stat', 'utf8').split(') ')
  const [user, system] = rest.split(' ').slice(13, 15)
  return (Number(user) + Number(system)) * TICK_MS
}

/** Gives what was added since the last call: stages end one after the other, each with all that it has used. */
function cpuMeter() {
  let taken = childrenCpuMs()
  return () => {
    const now = childrenCpuMs()
    const since = now - taken
    taken = now
    return since
  }
}

/** A stage goes on for as long as its log grows. */
function watchSilence(log, silentSeconds, onSilent) {
  const silence = new Silence()
  let size = 0
  const timer = setInterval(() => {
    const now = statSync(log).size
    if (now !== size) silence.heard()
    size = now
    if (!silence.isLongerThan(silentSeconds * 1000)) return
    clearInterval(timer)
    onSilent()
  }, LOOK_EVERY_MS)
  return () => clearInterval(timer)
}

function reportOf(stage, { code, trouble, text, ms, cpuMs }) {
  const counts = countsOf(text)
  const reason = skipReason(text)
  const isSkipped = reason !== undefined && counts.passed + counts.failed === 0
  const outcome = code !== 0 || trouble !== undefined ? 'FAIL' : isSkipped ? 'skip' : 'ok'
  return { stage, outcome, counts, reason, why: trouble ?? `exit code ${code}`, text, ms, cpuMs }
}

function announce({ stage, outcome, counts, reason, why, text, ms, cpuMs }, write) {
  const parts = [
    ...(outcome === 'FAIL' ? [why] : []),
    ...Object.entries(counts).flatMap(([word, count]) => (count > 0 ? [`${count} ${word}`] : [])),
    ...(reason === undefined ? [] : [`skipped: ${reason}`]),
  ]
  const [wall, cpu] = [ms, cpuMs].map(each => `${Math.round(each / 1000)} s`.padStart(7))
  write(`${outcome.padEnd(5)} ${stage.name.padEnd(12)} ${wall} ${cpu} CPU  ${parts.join(', ')}\n`)
  if (outcome === 'FAIL')
    write(`--- output of ${stage.name}:\n${failureReport(text)}\n--- end of the output of ${stage.name}\n`)
}

/** Whoever sees only the end of the output knows what failed, and how to see it again. */
function summarize(reports, write) {
  for (const { stage, why, text } of reports.filter(({ outcome }) => outcome === 'FAIL')) {
    const { lines, file } = firstFailure(text)
    write(`\nFAIL  ${stage.name}: ${why}; its first failure:\n${lines.join('\n')}\n`)
    write(`again: npm test -- ${stage.name}\n`)
    if (file !== undefined && stage.script !== undefined) write(`   or: npm run ${stage.script} -- ${file}\n`)
  }
  const sum = word => reports.reduce((total, { counts }) => total + counts[word], 0)
  const having = wanted => reports.filter(({ outcome }) => outcome === wanted)
  const skipped = having('skip').map(({ stage }) => stage.name)
  const names = skipped.length > 0 ? ` (${skipped.join(', ')})` : ''
  write(`\ntests: ${sum('passed')} passed, ${sum('failed')} failed, ${sum('skipped')} skipped\n`)
  write(
    `stages: ${having('ok').length} passed, ${having('FAIL').length} failed, ${skipped.length} skipped${names}\n`,
  )
}

function killGroup(pid, signal) {
  if (pid === undefined) return
  try {
    process.kill(-pid, signal)
  } catch (error) {
    // Nothing is left of it.
    if (error.code !== 'ESRCH') throw error
  }
}
