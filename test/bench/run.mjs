#!/usr/bin/env node
// Bundles each benchmark and runs it in a network namespace of its own: see HELP below.
import { spawnSync } from 'node:child_process'
import { readdirSync } from 'node:fs'
import { cpus, release } from 'node:os'
import { dirname, join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { bundle } from './bundle.mjs'

const here = dirname(fileURLToPath(import.meta.url))
const root = join(here, '../..')
const out = join(root, '.cache/bench')
const all = readdirSync(here).flatMap(name =>
  name.endsWith('.bench.ts') ? [name.slice(0, -'.bench.ts'.length)] : [],
)
const HELP = `npm run bench -- [NAME...]

Bundles test/bench/NAME.bench.ts and runs it in a network namespace of its own; without a NAME, all of them.

  NAME    ${all.join(', ')}
  --help  print this
`
const asked = process.argv.slice(2)
if (asked.some(word => word === '--help' || word === '-h')) {
  process.stdout.write(HELP)
  process.exit(0)
}
const unknown = asked.filter(name => !all.includes(name))
if (unknown.length > 0) {
  console.error(`no such benchmark: ${unknown.join(', ')}; there are: ${all.join(', ')}`)
  process.exit(2)
}

// Root gets a network namespace alone, so that send buffers can be forced as in production; others a user namespace too.
const isRoot = process.getuid?.() === 0 && spawnSync('unshare', ['-n', 'true']).status === 0
const namespace = isRoot ? '-n' : '-Urn'
const runtime = `Node ${process.versions.node}, ${cpus().length} processors, Linux ${release()}`
console.log(`${runtime}, each benchmark in unshare ${namespace}`)
if (!isRoot)
  console.log('without root, nft cannot force its send buffer: its part of the comparison may fail')

let failed = false
for (const name of asked.length > 0 ? asked : all) {
  const file = await bundle(join(here, `${name}.bench.ts`), { root, out, name })
  console.log(`\n== ${name}`)
  const run = spawnSync(
    'unshare',
    [namespace, 'setpriv', '--pdeathsig', 'TERM', process.execPath, '--expose-gc', file],
    {
      cwd: root,
      stdio: 'inherit',
      env: { ...process.env, KPROBE_BENCH_BUNDLE: file, KPROBE_ROOT: root },
    },
  )
  failed ||= run.status !== 0
}
process.exit(failed ? 1 : 0)
