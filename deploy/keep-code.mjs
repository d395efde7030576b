// Runs dist/program.js on a small cluster, without a kernel, and leaves the code that V8 compiled meanwhile in
// dist/program.ARCH.cache, for deploy/loader.mjs. The same program gives the same bytes: deploy/build.mjs starts this with a fixed
// seed for V8's hashes, which decide the order of tables, and without what depends on time: V8 drops code that has not run for a
// while, and marks functions that ran often enough to become machine code. The program pauses after some milliseconds of work,
// by a clock that goes on with each look at it: else a fast machine would never run what is between the pauses. One thread
// inflates the lists: with several, the node comes before the Services on one day, and after them on the next.
import { mkdirSync, readFileSync, renameSync, rmSync, writeFileSync } from 'node:fs'
import { createRequire } from 'node:module'
import { fileURLToPath } from 'node:url'
import { setFlagsFromString } from 'node:v8'
import { Script } from 'node:vm'
import { build } from 'esbuild'

const root = fileURLToPath(new URL('..', import.meta.url))
const folder = `${root}.cache/keep-code/`
const command = new URL('../dist/kprobe.mjs', import.meta.url)
const program = new URL('program.js', command)
const cache = `${root}dist/program.${process.arch}.cache`
/** Longer than any slice of work. */
const LOOK_MS = 20

/** The API server of the tests, for what a daemon runs of HTTP/2, TLS and protobuf. Gives the path of a kubeconfig. */
async function startApiServer() {
  mkdirSync(folder, { recursive: true })
  const outfile = `${folder}api-server.mjs`
  const contents = `export { ApiServer } from './test/support/apiserver/http-server.ts'
    export { clusterOf } from './test/support/apiserver/generator.ts'`
  await build({
    stdin: { contents, resolveDir: root },
    absWorkingDir: root,
    outfile,
    bundle: true,
    format: 'esm',
    platform: 'node',
    target: 'node20',
    logLevel: 'warning',
  })
  const { ApiServer, clusterOf } = await import(outfile)
  const server = await ApiServer.start({ relay: false })
  for (const { resource, object } of clusterOf({ services: 10, endpointsPerService: 3, nodes: 1 }))
    server.store.create(resource, object)
  const kubeconfig = `${folder}kubeconfig`
  writeFileSync(kubeconfig, server.kubeconfig({ token: 'none' }))
  return kubeconfig
}

const require = createRequire(command)
/** V8 keeps code for the flags of the moment: those of this process stay as they were at its start, as they are then. */
const withoutFlags = name =>
  name === 'node:v8' ? { ...require(name), setFlagsFromString: () => undefined } : require(name)

const kubeconfig = await startApiServer()
const script = new Script(readFileSync(program, 'latin1'), { filename: 'program.js' })
process.on('exit', code => {
  rmSync(folder, { recursive: true })
  if (code !== 0) return
  // The flags of the start are part of what V8 compares. These are their defaults, which a daemon has.
  for (const flag of ['--hash-seed=0', '--flush-bytecode', '--sparkplug']) setFlagsFromString(flag)
  writeFileSync(`${cache}.new`, script.createCachedData())
  renameSync(`${cache}.new`, cache)
})

let nowMs = performance.now()
performance.now = () => (nowMs += LOOK_MS)
process.argv = [
  process.execPath,
  fileURLToPath(command),
  'run',
  '--once',
  '--backend=dry-run',
  `--kubeconfig=${kubeconfig}`,
  '--hostname-override=node-0',
  '--cluster-cidr=10.128.0.0/9',
  '-v=0',
]
script.runInThisContext()(withoutFlags, command.href)
