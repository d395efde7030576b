// npm test, once everything is installed and built: main.mjs [--changed] [NAME...]
// With --changed, what changed is linted, the unit tests are those that guard it, and those on the kernel are named.
import { spawn } from 'node:child_process'
import { existsSync } from 'node:fs'
import { availableParallelism } from 'node:os'
import { changedFiles, guardsOf } from './files.mjs'
import { runStages } from './run-stages.mjs'
import { stagesOf } from './stages.mjs'

/** Most stages wait now and then. */
const processors = availableParallelism() + 1
const abort = new AbortController()
for (const signal of ['SIGINT', 'SIGTERM', 'SIGHUP']) process.once(signal, () => abort.abort(signal))

const words = process.argv.slice(2)
const changed = words.includes('--changed') ? changedFiles() : undefined
const guards = changed && guardsOf(changed)
const names = words.filter(word => word !== '--changed')
const chosen = stagesOf(names)
const isAgainstReference = ({ name }) => name.startsWith('reference')
const built = chosen.some(isAgainstReference) ? buildReference() : undefined
const stages = chosen.map(stage => {
  if (isAgainstReference(stage)) return { ...stage, ready: built }
  if (changed === undefined) return stage
  if (stage.name === 'lint')
    return {
      ...stage,
      command: [...stage.command, '--no-errors-on-unmatched', ...changed.filter(existsSync)],
    }
  if (stage.name !== 'unit-quick') return stage
  return { ...stage, command: [...stage.command, 'test/architecture.test.ts', ...guards.plain] }
})
const failed = await runStages({
  stages,
  processors,
  write: text => process.stdout.write(text),
  signal: abort.signal,
})
if (guards !== undefined && guards.onKernel.length > 0)
  process.stdout.write(`On the kernel, these guard what changed:\n  ${guards.onKernel.join('\n  ')}\n`)
process.exitCode = abort.signal.aborted ? 130 : failed > 0 ? 1 : 0

/** The real control plane takes minutes to build where it was never built: beside other stages, and behind them. */
function buildReference() {
  const args = ['-n', '19', process.execPath, 'test/reference/build.mjs']
  const child = spawn('nice', args, { stdio: 'ignore', detached: true })
  const ended = new Promise(resolve => {
    child.on('error', resolve)
    child.on('exit', resolve)
  })
  const stop = () => child.exitCode ?? process.kill(-child.pid, 'SIGTERM')
  abort.signal.addEventListener('abort', stop)
  return () => ended
}
