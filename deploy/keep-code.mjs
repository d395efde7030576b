// Runs dist/program.js on the examples, without a kernel, and leaves the code that V8 compiled meanwhile in
// dist/program.cache, for deploy/loader.mjs.
import { readFileSync, renameSync, writeFileSync } from 'node:fs'
import { createRequire } from 'node:module'
import { fileURLToPath } from 'node:url'
import { Script } from 'node:vm'

const dist = new URL('../dist/', import.meta.url)
const command = new URL('kprobe.mjs', dist)
const program = new URL('program.js', dist)
const examples = fileURLToPath(new URL('examples', import.meta.url))

const require = createRequire(command)
/** V8 keeps code for the flags of the moment: those of this process stay as they were at its start, as they are then. */
const withoutFlags = name =>
  name === 'node:v8' ? { ...require(name), setFlagsFromString: () => undefined } : require(name)

const script = new Script(readFileSync(program, 'latin1'), { filename: program.href })
process.on('exit', code => {
  if (code !== 0) return
  const cache = fileURLToPath(new URL('program.cache', dist))
  writeFileSync(`${cache}.new`, script.createCachedData())
  renameSync(`${cache}.new`, cache)
})

process.argv = [
  process.execPath,
  fileURLToPath(command),
  'run',
  '--once',
  '--backend=dry-run',
  `--source=file:${examples}`,
  '--hostname-override=example-node',
  '--cluster-cidr=10.244.0.0/16',
  '-v=0',
]
script.runInThisContext()(withoutFlags, command.href)
