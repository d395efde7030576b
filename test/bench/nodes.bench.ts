import { execFileSync } from 'node:child_process'
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { performance } from 'node:perf_hooks'
import { command } from '../../src/cli/nodes.ts'
import { ExecServer } from '../support/exec-server.ts'
import { FakeIo } from '../support/fake-io.ts'
import { goal, print } from './report.ts'

/** `kubectl kprobe verify` over a cluster: each command takes as long as on a node of 1,000 Services. */
const NODES = 500
const RUN_MS = 500
const GOAL_S = 60

execFileSync('ip', ['link', 'set', 'lo', 'up'])
const folder = mkdtempSync(join(tmpdir(), 'kprobe-bench-'))
const pods = Array.from({ length: NODES }, (_, at) => ({
  metadata: { name: `kprobe-${at}` },
  spec: { nodeName: `node-${at}` },
  status: { conditions: [{ type: 'Ready', status: 'True' }] },
}))
const server = await ExecServer.start({
  pods,
  runMs: RUN_MS,
  answer: () => ({ stdout: '{"differences":[]}' }),
})
try {
  const kubeconfig = join(folder, 'kubeconfig')
  writeFileSync(kubeconfig, server.kubeconfig)
  const rows: Readonly<Record<string, string>>[] = []
  for (const concurrency of [20, 100]) {
    const io = new FakeIo()
    const [began, used] = [performance.now(), process.cpuUsage()]
    const code = await command.run(
      ['verify', `--kubeconfig=${kubeconfig}`, `--concurrency=${concurrency}`],
      io,
    )
    if (code !== 0) throw new Error(`exit code ${code}: ${io.stdout.slice(-200)}${io.stderr}`)
    const seconds = (performance.now() - began) / 1_000
    const { user, system } = process.cpuUsage(used)
    rows.push({
      concurrency: String(concurrency),
      seconds: `${seconds.toFixed(1)} ${goal(Math.round(seconds), GOAL_S)}`,
      'processor, both sides, s': ((user + system) / 1e6).toFixed(1),
    })
  }
  print(`kubectl kprobe verify, ${NODES} nodes, ${RUN_MS} ms a node`, rows)
} finally {
  await server.close()
  rmSync(folder, { recursive: true, force: true })
}
