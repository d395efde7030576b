// Chooses test files by what they use. `node test/stages/files.mjs runtime` prints those that `runtimes` runs.
import { execFileSync } from 'node:child_process'
import { existsSync, readdirSync, readFileSync } from 'node:fs'
import { posix } from 'node:path'

/** Where the tests of the projects `unit*` are. */
const FOLDERS = ['test/unit', 'test/fuzz', 'test/scenarios', 'test/contract', 'test/attack']
const ON_KERNEL = /\/(packets|walk|kernel)[^/]*$|^test\/attack\/kernel\//
/** They read files of this folder, which are the same everywhere. */
const ABOUT_TEXTS = /^test\/unit\/(docs|support)\//

/**
 * What differs between majors of Node.js: connections and TLS, HTTP/1 and HTTP/2, processes and signals, compression, flags of
 * V8, modules and the cache of compiled code, and the addon.
 */
const RUNTIME =
  /from 'node:(child_process|dgram|dns|http|http2|inspector|module|net|tls|v8|vm|worker_threads|zlib)|netlink\/native/
/** Codecs, by properties: strings, buffers and numbers are V8's. */
const CODECS = /^test\/fuzz\/|^test\/unit\/(wire|netlink)\//
/** What KPROBE_RUNS makes more of. */
const REPEATS = /from 'fast-check'|\b(runs|tried)\(/

/** Test files without a kernel that use the runtime, or import a module of src/ that does, and those of codecs. */
export function runtimeFiles() {
  return unitTests().filter(
    path =>
      CODECS.test(path) || (!ABOUT_TEXTS.test(path) && sourcesOf(path).some(each => RUNTIME.test(each))),
  )
}

/** Test files without a kernel that do more with KPROBE_RUNS=all: the others would do again what they did in `unit`. */
export function repeatingFiles() {
  return unitTests().filter(path => sourcesOf(path, /^test\//).some(each => REPEATS.test(each)))
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

function importsOf(path) {
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

/**
 * Test files that guard these files: they import one of them, or a file of test/support that does, or are one of them. The
 * first list runs with Node alone, the second one needs a kernel.
 */
export function guardsOf(changed) {
  const touched = new Set(changed)
  const touches = path => touched.has(path) || importsOf(path).some(to => touched.has(to))
  const support = filesIn('test/support').filter(path => /\.m?ts$/.test(path) && touches(path))
  for (const path of support) touched.add(path)
  const guards = filesIn('test').filter(path => path.endsWith('.test.ts') && touches(path))
  const isPlain = path => FOLDERS.some(folder => path.startsWith(`${folder}/`)) && !ON_KERNEL.test(path)
  return { plain: guards.filter(isPlain), onKernel: guards.filter(path => !isPlain(path)) }
}

if (process.argv[2] === 'runtime') console.log(runtimeFiles().join('\n'))
