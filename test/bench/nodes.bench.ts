import { execFileSync } from 'node:child_process'
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { performance } from 'node:perf_hooks'
import { command } from '../../src/cli/nodes.ts'
import { ExecServer } from '../support/exec-server.ts'
import { FakeIo } from '../support/fake-io.ts'
import { goal, print } from './report.ts'

/** `kubectl kprobe` over a cluster: each command takes as long as on a node of 1,000 Services. */
const NODES = 500
const GOAL_S = 60
const COMMANDS = [
  { argv: ['verify'], runMs: 500, stdout: '{"differences":[]}' },
  {
    argv: ['top', '--once'],
    runMs: 1_500,
    stdout: '{"perSecond":1,"table":{"entries":1,"entriesMax":9},"daemon":{"mode":"nftables","repairs":0}}',
  },
]

execFileSync('ip', ['link', 'set', 'lo', 'up'])
const folder = mkdtempSync(join(tmpdir(), 'kprobe-bench-'))
const pods = Array.from({ length: NODES }, (_, at) => ({
  metadata: { name: `kprobe-${at}` },
  spec: { nodeName: `node-${at}` },
  status: { conditions: [{ type: 'Ready', status: 'True' }] },
}))
try {
  for (const { argv, runMs, stdout } of COMMANDS) {
    const server = await ExecServer.start({ pods, runMs, answer: () => ({ stdout }) })
    try {
      const kubeconfig = join(folder, 'kubeconfig')
      writeFileSync(kubeconfig, server.kubeconfig)
      const rows: Readonly<Record<string, string>>[] = []
      for (const concurrency of [20, 100]) {
        const io = new FakeIo()
        const [began, used] = [performance.now(), process.cpuUsage()]
        const flags = [`--kubeconfig=${kubeconfig}`, `--concurrency=${concurrency}`]
        const code = await command.run([...argv, ...flags], io)
        if (code !== 0) throw new Error(`exit code ${code}: ${io.stdout.slice(-200)}${io.stderr}`)
        const seconds = (performance.now() - began) / 1_000
        const { user, system } = process.cpuUsage(used)
        rows.push({
          concurrency: String(concurrency),
          seconds: `${seconds.toFixed(1)} ${goal(Math.round(seconds), GOAL_S)}`,
          'processor, both sides, s': ((user + system) / 1e6).toFixed(1),
        })
      }
      print(`kubectl kprobe ${argv[0]}, ${NODES} nodes, ${runMs} ms a node`, rows)
    } finally {
      await server.close()
    }
  }
} finally {
  rmSync(folder, { recursive: true, force: true })
}
