// npm test, once everything is installed and built: main.mjs [--again] [NAME...]
import { spawn } from 'node:child_process'
import { availableParallelism } from 'node:os'
import { runStages } from './run-stages.mjs'
import { stagesOf } from './stages.mjs'

/** Most stages wait now and then. */
const processors = availableParallelism() + 1
const abort = new AbortController()
for (const signal of ['SIGINT', 'SIGTERM', 'SIGHUP']) process.once(signal, () => abort.abort(signal))

const words = process.argv.slice(2)
const again = words.includes('--again')
const stages = stagesOf(words.filter(word => word !== '--again')).map(stage =>
  stage.name === 'reference' ? { ...stage, ready: buildReference() } : stage,
)
const failed = await runStages({
  stages,
  processors,
  write: text => process.stdout.write(text),
  signal: abort.signal,
  again,
})
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
