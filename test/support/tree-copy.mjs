import { cpSync, mkdtempSync, rmSync, symlinkSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'

const COPIED = [
  '.npmrc',
  'biome.json',
  'binding.gyp',
  'package.json',
  'package-lock.json',
  'tsconfig.json',
  'vitest.config.ts',
  'src',
  'test',
  'native',
  'README.md',
  'CHANGELOG.md',
  'CONTRIBUTING.md',
  'SECURITY.md',
  'LICENSE',
]
const LINKED = ['node_modules', 'build', 'dist', 'deploy', 'docs', '.ci']

/** Copies what types, lint and unit tests read into a temporary folder, which goes when the process ends; returns its path. */
export function copyTree() {
  const copy = mkdtempSync(join(tmpdir(), 'kprobe-copy-'))
  process.once('exit', () => rmSync(copy, { recursive: true, force: true }))
  for (const signal of ['SIGINT', 'SIGTERM']) process.once(signal, () => process.exit(130))
  for (const name of COPIED) cpSync(name, join(copy, name), { recursive: true })
  for (const name of LINKED) symlinkSync(join(process.cwd(), name), join(copy, name))
  return copy
}
