#!/usr/bin/env node
// A real cluster and upstream's tests in it: main.ts, as one file that Node runs. --help says what it can do.
import { mkdirSync, renameSync } from 'node:fs'
import { dirname, join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { build } from 'esbuild'
import { requireBuild } from '../support/require-build.mjs'

const here = dirname(fileURLToPath(import.meta.url))
const root = join(here, '../..')
const program = join(root, '.cache/cluster/cluster.mjs')
const unfinished = `${program}.${process.pid}`
const args = process.argv.slice(2)
/** What starts no kprobe. */
const UNBUILT = ['run', 'exec', 'down', 'load-balancer', 'traffic']
if (!UNBUILT.includes(args[0]) && !args.some(word => word === '--help' || word === '-h')) requireBuild()

mkdirSync(dirname(program), { recursive: true })
await build({
  entryPoints: [join(here, 'main.ts')],
  outfile: unfinished,
  bundle: true,
  platform: 'node',
  format: 'esm',
  target: 'node20',
  logLevel: 'warning',
  // prom-client is CommonJS.
  banner: {
    js: "import { createRequire as __createRequire } from 'node:module'; const require = __createRequire(import.meta.url);",
  },
})
// Another cluster may be starting at the same time.
renameSync(unfinished, program)
process.env.KPROBE_ROOT = root
process.env.KPROBE_CLUSTER_PROGRAM = program
await import(program)
