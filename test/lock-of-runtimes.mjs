// node test/lock-of-runtimes.mjs NODE...: of each two Node.js, a kprobe on the second finds the lock of one on the first
// held. In a network namespace of its own: unshare -Urnm.
import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'

const COMMAND = fileURLToPath(new URL('../dist/kprobe.mjs', import.meta.url))
const NOWHERE = ['--healthz-bind-address=', '--metrics-bind-address=']
const BUSY = 'another kprobe runs in this network namespace'

const folder = mkdtempSync(join(tmpdir(), 'kprobe-locks-'))
const service = { apiVersion: 'v1', kind: 'Service', metadata: { name: 'a', namespace: 'b' } }
writeFileSync(
  join(folder, 'a.json'),
  JSON.stringify({ ...service, spec: { clusterIP: '10.0.0.1', ports: [{ port: 80 }] } }),
)

/** Resolves with what was logged when that has `text` in it, or when the daemon ended. */
function run(node, text) {
  const child = spawn(node, [COMMAND, 'run', `--source=file:${folder}`, '--admin-socket=', ...NOWHERE], {
    stdio: ['ignore', 'ignore', 'pipe'],
  })
  let log = ''
  const found = new Promise(resolve => {
    child.stderr.on('data', bytes => {
      log += bytes
      if (log.includes(text)) resolve(log)
    })
    child.once('close', () => resolve(log))
  })
  return { child, found }
}

let failed = 0
for (const one of process.argv.slice(2)) {
  for (const other of process.argv.slice(2)) {
    const first = run(one, 'first sync complete')
    const started = (await first.found).includes('first sync complete')
    const second = run(other, 'first sync complete')
    const isKeptAway = (await second.found).includes(BUSY)
    for (const { child } of [second, first]) {
      child.kill('SIGKILL')
      if (child.exitCode === null && child.signalCode === null) await once(child, 'exit')
    }
    const isFine = started && isKeptAway
    if (!isFine) failed++
    console.log(`${isFine ? 'ok  ' : 'FAIL'}  ${one} keeps ${other} away`)
  }
}
rmSync(folder, { recursive: true })
process.exitCode = failed === 0 ? 0 : 1
