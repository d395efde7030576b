import { spawnSync } from 'node:child_process'
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { type ClusterSize, clusterObjects } from './cluster.ts'
import { kubeProxyLayout } from './kube-proxy-layout.ts'
import { goal, median, print } from './report.ts'

const RUNS = 5
const root = process.env.KPROBE_ROOT ?? '.'
const folder = mkdtempSync(join(tmpdir(), 'kprobe-bench-'))

/** A whole process, from start to exit. */
interface Run {
  readonly ms: number
  readonly peakMiB: number
}

/** Node does not tell the memory of its children; Python does. */
const MEASURE = `
import json, resource, subprocess, sys, time
start = time.monotonic()
code = subprocess.call(sys.argv[1:], stdout=subprocess.DEVNULL)
ms = (time.monotonic() - start) * 1000
print(json.dumps({"ms": ms, "peakMiB": resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024}))
sys.exit(code)`

try {
  const large = kprobe({ services: 30_000, endpoints: 3 })
  print('kprobe run --source=file:F --once, process start to exit, medians', [
    {
      size: '30000 x 3',
      ms: `${large.ms.toFixed(0)} ${goal(large.ms, 2_500)}`,
      'peak RSS MiB': `${large.peakMiB.toFixed(0)} ${goal(large.peakMiB, 200)}`,
    },
  ])
  const size = { services: 1_000, endpoints: 10 }
  const small = kprobe(size)
  const nft = nftAlone(size)
  print("the same beside nft -f of kube-proxy's layout, medians", [
    {
      size: '1000 x 10',
      'kprobe ms': `${small.ms.toFixed(0)} ${goal(small.ms, 800)}`,
      'nft -f ms': nft.ms.toFixed(0),
      'kprobe / nft': (small.ms / nft.ms).toFixed(2),
      'kprobe MiB': small.peakMiB.toFixed(0),
      'nft MiB': nft.peakMiB.toFixed(0),
    },
  ])
} finally {
  rmSync(folder, { recursive: true })
}

function kprobe(size: ClusterSize): Run {
  const file = join(folder, `${size.services}.json`)
  writeFileSync(file, JSON.stringify({ apiVersion: 'v1', kind: 'List', items: [...clusterObjects(size)] }))
  const command = [process.execPath, join(root, 'dist/kprobe.mjs'), 'run', `--source=file:${file}`, '--once']
  return repeated([...command, '--hostname-override=node-0'])
}

function nftAlone(size: ClusterSize): Run {
  const input = join(folder, 'layout.nft')
  writeFileSync(input, [...kubeProxyLayout(size)].join('\n'))
  return repeated(['nft', '-f', input])
}

/** Each run finds an empty kernel. */
function repeated(command: readonly string[]): Run {
  const runs = Array.from({ length: RUNS }, () => {
    const run = measured(command)
    spawnSync('nft', ['flush', 'ruleset'])
    return run
  })
  return { ms: median(runs.map(run => run.ms)), peakMiB: median(runs.map(run => run.peakMiB)) }
}

function measured(command: readonly string[]): Run {
  const run = spawnSync('python3', ['-c', MEASURE, ...command], {
    encoding: 'utf8',
    stdio: ['ignore', 'pipe', 'inherit'],
  })
  if (run.status !== 0) throw new Error(`${command.join(' ')} exited with ${run.status}`)
  return JSON.parse(run.stdout)
}
