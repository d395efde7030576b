// without-mode.mjs [MODE]: removes one mode from a copy of the tree, and finds that the rest types, lints and passes the
// unit tests of what asks which modes there are. A mode is its folder, its row of the configuration, its lines in both
// registries and in the import rules, and the tests that name it.
import { spawnSync } from 'node:child_process'
import { existsSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { join, posix } from 'node:path'
import { copyTree } from './support/tree-copy.mjs'

const [mode = 'userspace'] = process.argv.slice(2)
/** Unit tests of what asks the registry; the other ones only repeat what the stage `unit` says. */
const ASKING = ['test/architecture.test.ts', 'test/unit/config', 'test/unit/daemon', 'test/unit/cli']

const modes = readdirSync('src/modes').filter(name => existsSync(join('src/modes', name, 'mode.ts')))
if (!modes.includes(mode)) {
  console.error(`usage: node test/without-mode.mjs [MODE]; MODE is ${modes.join(', ')}; by default userspace`)
  process.exit(2)
}

const copy = copyTree()
const room = `src/modes/${mode}/`
rmSync(join(copy, room), { recursive: true })
rmSync(join(copy, `src/config/modes/${mode}.ts`))
for (const path of ['src/modes/registry.ts', 'src/config/modes.ts', 'test/support/source-rules.ts']) {
  const lines = readFileSync(join(copy, path), 'utf8').split('\n')
  writeFileSync(
    join(copy, path),
    lines.filter(line => !new RegExp(`\\b${mode}\\b`, 'i').test(line)).join('\n'),
  )
}
const gone = testsOf(mode)
for (const path of gone) rmSync(join(copy, path))
console.log(`without ${mode} mode, and ${gone.size} files of its tests`)

const bin = name => join(process.cwd(), 'node_modules/.bin', name)
run(bin('tsc'), ['-p', '.'])
run(bin('tsc'), ['-p', 'src/ui'])
run(bin('biome'), ['check', '--formatter-enabled=false', '--error-on-warnings', 'src', 'test'])
run(bin('vitest'), ['run', '--project', 'unit*', ...ASKING])

/** Files of tests that name the mode, and those that import such files. */
function testsOf(name) {
  const texts = new Map(
    readdirSync(join(copy, 'test'), { recursive: true })
      .map(path => posix.join('test', path))
      .filter(path => /\.(ts|mjs)$/.test(path))
      .map(path => [path, readFileSync(join(copy, path), 'utf8')]),
  )
  const found = new Set(
    [...texts.keys()].filter(path => new RegExp(`\\b${name}\\b`, 'i').test(texts.get(path))),
  )
  for (let before = -1; before < found.size; ) {
    before = found.size
    for (const [path, text] of texts) if (importsOf(path, text).some(each => found.has(each))) found.add(path)
  }
  return found
}

function importsOf(path, text) {
  return [...text.matchAll(/'(\.\.?\/[^']+)'/g)].map(([, to]) => posix.join(posix.dirname(path), to))
}

function run(command, args) {
  const { status } = spawnSync(command, args, { cwd: copy, stdio: 'inherit' })
  if (status !== 0) process.exit(1)
}
