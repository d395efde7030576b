// Chooses test files by what they use. `node test/stages/files.mjs runtime` prints those that `runtimes` runs.
import { execFileSync } from 'node:child_process'
import { existsSync, readdirSync, readFileSync } from 'node:fs'
import { posix } from 'node:path'

/** Where the tests of the projects `unit*` are. */
const FOLDERS = ['test/unit', 'test/fuzz', 'test/scenarios', 'test/contract', 'test/attack']
const ON_KERNEL = /\/(packets|walk|kernel)[^/]*$|^test\/attack\/kernel\//
/**
 * What differs between majors of Node.js, a few files for each: strings, buffers and numbers by the properties of codecs; the
 * addon; kept code and the loading of modules; flags of V8; HTTP/2, HTTP/1, TLS and compression; processes and signals. Code
 * that only computes does the same everywhere, and runs in the stage `unit`.
 */
const RUNTIME = [
  'test/fuzz/ipvs-codec.test.ts',
  'test/fuzz/nft-codec.test.ts',
  'test/fuzz/wire.test.ts',
  'test/fuzz/xt-rule.test.ts',
  'test/unit/wire/protobuf/decoder.test.ts',
  'test/unit/wire/protobuf/encoder.test.ts',
  'test/unit/netlink/native.test.ts',
  'test/unit/deploy/program.test.ts',
  'test/unit/daemon/engine.test.ts',
  'test/unit/source/kube/client/http2-connection.test.ts',
  'test/unit/source/kube/client/call-answer.test.ts',
  'test/unit/source/kube/client/exec-plugin.test.ts',
  'test/unit/api/grpc/http-server.test.ts',
  'test/unit/api/grpc/services.test.ts',
  'test/unit/http/connections.test.ts',
  'test/unit/base/unix-socket.test.ts',
]
/** What KPROBE_RUNS makes more of. */
const REPEATS = /from 'fast-check'|import \{[^}]*\b(runs|tried)\b[^}]*\} from '[^']*\/runs\.ts'/
/** It takes a part in `npm run ok` alone. */
const WHOLE_ALREADY = 'test/unit/proof/scenarios.test.ts'

/** Throws where one of them has another name by now: a run would leave it out. */
export function runtimeFiles() {
  const gone = RUNTIME.filter(path => !existsSync(path))
  if (gone.length > 0)
    throw new Error(`test/stages/files.mjs names files that are not there: ${gone.join(', ')}`)
  return RUNTIME
}

/** Test files without a kernel that do more with KPROBE_RUNS=all: the others would do again what they did in `unit`. */
export function repeatingFiles() {
  return unitTests().filter(
    path => path !== WHOLE_ALREADY && sourcesOf(path, /^test\//).some(each => REPEATS.test(each)),
  )
}

function unitTests() {
  return FOLDERS.flatMap(filesIn).filter(path => path.endsWith('.test.ts') && !ON_KERNEL.test(path))
}

function filesIn(folder) {
  return readdirSync(folder, { recursive: true })
    .map(name => posix.join(folder, name))
    .sort()
}

/** The text of a file, and those of the files that it imports itself. */
function sourcesOf(path, from = /^src\//) {
  const read = importsOf(path).filter(each => from.test(each) && existsSync(each))
  return [path, ...read].map(each => readFileSync(each, 'utf8'))
}

/** Paths of the files that a file imports itself. */
export function importsOf(path) {
  const imports = readFileSync(path, 'utf8').matchAll(/from '(\.\.?\/[^']+)'/g)
  return [...imports].map(([, to]) => posix.join(posix.dirname(path), to))
}

/** Files that differ from the last commit, or those of the last commit where none does. */
export function changedFiles() {
  const git = (...words) => execFileSync('git', words, { encoding: 'utf8' }).split('\n').filter(Boolean)
  const fresh = git('ls-files', '--others', '--exclude-standard')
  const changed = [...git('diff', '--name-only', 'HEAD'), ...fresh]
  return changed.length > 0 ? changed : git('diff', '--name-only', 'HEAD~1')
}

/** It follows packets of every scenario through the rules of every mode: whatever it comes to is guarded by it. */
export const BROAD = 'test/scenarios/trace.test.ts'

/**
 * Test files that guard these files: they import one of them, or a helper that does, or are one of them; and the tracer, if it
 * comes to one of them by whatever way. The first list runs with Node alone, the second one needs a kernel.
 */
export function guardsOf(changed) {
  const touched = new Set(changed)
  const touches = path => touched.has(path) || importsOf(path).some(to => touched.has(to))
  const isHelper = path => /\.m?[tj]s$/.test(path) && !path.endsWith('.test.ts')
  for (const path of filesIn('test').filter(path => isHelper(path) && touches(path))) touched.add(path)
  const isBroad = reachedFrom(BROAD).some(path => touched.has(path))
  const guards = filesIn('test').filter(
    path => path.endsWith('.test.ts') && (touches(path) || (isBroad && path === BROAD)),
  )
  const isPlain = path => FOLDERS.some(folder => path.startsWith(`${folder}/`)) && !ON_KERNEL.test(path)
  return { plain: guards.filter(isPlain), onKernel: guards.filter(path => !isPlain(path)) }
}

/** All files that a file imports, and that those import. */
function reachedFrom(path) {
  const found = new Set([path])
  for (const each of found) for (const to of importsOf(each).filter(existsSync)) found.add(to)
  return [...found]
}

if (process.argv[2] === 'runtime') console.log(runtimeFiles().join('\n'))
