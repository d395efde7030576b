// Leaves the whole command in dist/: kprobe.mjs (one bundled file) and, beside it, the addon.
import {
  chmodSync,
  copyFileSync,
  existsSync,
  mkdirSync,
  readFileSync,
  renameSync,
  rmSync,
  symlinkSync,
} from 'node:fs'
import { fileURLToPath } from 'node:url'
import { build } from 'esbuild'

const root = fileURLToPath(new URL('..', import.meta.url))
const { version } = JSON.parse(readFileSync(`${root}package.json`, 'utf8'))

// Bundled CommonJS packages call require() for Node's own modules, which an ES module does not have.
const BANNER = `#!/usr/bin/env node
import { createRequire as createRequireForBundle } from 'node:module'
const require = createRequireForBundle(import.meta.url)`

async function bundle() {
  await build({
    absWorkingDir: root,
    entryPoints: ['src/main.ts'],
    outfile: 'dist/kprobe.mjs',
    bundle: true,
    format: 'esm',
    platform: 'node',
    target: 'node20',
    external: ['*.node', 'ffi-rs'],
    banner: { js: BANNER },
    define: { 'process.env.KPROBE_VERSION': JSON.stringify(version) },
    minifySyntax: true,
    legalComments: 'eof',
    logLevel: 'warning',
  })
  chmodSync(`${root}dist/kprobe.mjs`, 0o755)
}

function placeAddon() {
  const built = `${root}build/Release/kprobe.node`
  if (!existsSync(built))
    throw new Error('build/Release/kprobe.node is missing: run `npm run build:native` first')
  const placed = `${root}dist/kprobe.node`
  // A kprobe that runs has the old file mapped: writing into it would end that process.
  copyFileSync(built, `${placed}.new`)
  renameSync(`${placed}.new`, placed)
}

/** npm links the commands of dependencies only; with this, `npx kprobe` finds ours without installing anything. */
function linkCommand() {
  const link = `${root}node_modules/.bin/kprobe`
  mkdirSync(`${root}node_modules/.bin`, { recursive: true })
  rmSync(link, { force: true })
  symlinkSync('../../dist/kprobe.mjs', link)
}

await bundle()
placeAddon()
linkCommand()
