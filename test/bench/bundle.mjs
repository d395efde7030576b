import { copyFileSync, mkdirSync } from 'node:fs'
import { join } from 'node:path'
import { build } from 'esbuild'
import { requireBuild } from '../support/require-build.mjs'

/** Bundles a benchmark into `out`, with the addon beside it, and gives the file. */
export async function bundle(source, { root, out, name }) {
  requireBuild()
  mkdirSync(out, { recursive: true })
  copyFileSync(join(root, 'build/Release/kprobe.node'), join(out, 'kprobe.node'))
  const outfile = join(out, `${name}.mjs`)
  await build({
    entryPoints: [source],
    outfile,
    bundle: true,
    platform: 'node',
    format: 'esm',
    target: 'node20',
    external: ['*.node', 'ffi-rs', 'esbuild', 'playwright-core'],
    banner: {
      js: "import { createRequire as __createRequire } from 'node:module'; const require = __createRequire(import.meta.url);",
    },
    logLevel: 'warning',
  })
  return outfile
}
