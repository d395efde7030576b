import { spawnSync } from 'node:child_process'
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { performance } from 'node:perf_hooks'
import { type ClusterSize, clusterObjects } from './cluster.ts'
import { kubeProxyLayout } from './kube-proxy-layout.ts'
import { median, print } from './report.ts'

const RUNS = 5
const root = process.env.KPROBE_ROOT ?? '.'

const folder = mkdtempSync(join(tmpdir(), 'kprobe-bench-'))
try {
  const large = once({ services: 30_000, endpoints: 3 })
  const small = once({ services: 1_000, endpoints: 10 })
  print('kprobe run --source=file:F --once, process start to exit (goal: 2.5 s; below nft -f)', [
    large,
    small,
  ])
} finally {
  rmSync(folder, { recursive: true })
}

function once(size: ClusterSize): Record<string, string> {
  const file = join(folder, `${size.services}.json`)
  writeFileSync(file, JSON.stringify({ apiVersion: 'v1', kind: 'List', items: [...clusterObjects(size)] }))
  const runs = Array.from({ length: RUNS }, () => {
    const run = timed('/usr/bin/env', [
      'node',
      join(root, 'dist/kprobe.mjs'),
      'run',
      `--source=file:${file}`,
      '--once',
      '--hostname-override=node-0',
    ])
    spawnSync('nft', ['flush', 'ruleset'])
    return run
  })
  const ours = median(runs)
  if (size.services > 1_000)
    return { size: name(size), 'kprobe ms': ours.toFixed(0), 'nft -f ms': '', ratio: '' }
  const input = join(folder, 'layout.nft')
  writeFileSync(input, [...kubeProxyLayout(size)].join('\n'))
  const nft = median(
    Array.from({ length: RUNS }, () => {
      const run = timed('nft', ['-f', input])
      spawnSync('nft', ['flush', 'ruleset'])
      return run
    }),
  )
  return {
    size: name(size),
    'kprobe ms': ours.toFixed(0),
    'nft -f ms': nft.toFixed(0),
    ratio: (ours / nft).toFixed(2),
  }
}

function name(size: ClusterSize): string {
  return `${size.services} x ${size.endpoints}`
}

function timed(command: string, args: readonly string[]): number {
  const start = performance.now()
  const run = spawnSync(command, args, { stdio: ['ignore', 'ignore', 'inherit'] })
  if (run.status !== 0) throw new Error(`${command} ${args.join(' ')} exited with ${run.status}`)
  return performance.now() - start
}
