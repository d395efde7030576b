#!/usr/bin/env node
// Bundles the benchmarks of the IPVS mode and runs them in the guest: npm run bench:vm
import { spawnSync } from 'node:child_process'
import { dirname, join, relative } from 'node:path'
import { fileURLToPath } from 'node:url'
import { bundle } from '../bench/bundle.mjs'

const here = dirname(fileURLToPath(import.meta.url))
const root = join(here, '../..')
const file = relative(
  root,
  await bundle(join(here, 'ipvs.bench.ts'), { root, out: join(root, '.cache/bench-vm'), name: 'ipvs' }),
)
const inside = ['env', `KPROBE_BENCH_BUNDLE=${file}`, process.execPath, '--expose-gc', file]
const run = spawnSync(process.execPath, [join(root, 'test/vm/run.mjs'), '--', ...inside], {
  cwd: root,
  stdio: 'inherit',
  env: { KPROBE_VM_SECONDS: '1200', ...process.env },
})
process.exit(run.status ?? 1)
