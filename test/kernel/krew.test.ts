import { execFileSync, spawnSync } from 'node:child_process'
import { createHash } from 'node:crypto'
import { mkdtempSync, readdirSync, readFileSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { expect, it, onTestFinished } from 'vitest'
import { parse } from 'yaml'

const MAIN = fileURLToPath(new URL('../../deploy/krew/main.mjs', import.meta.url))

it('the archive for krew has a plugin that runs, and the manifest its digest', () => {
  const folder = mkdtempSync(join(tmpdir(), 'kprobe-krew-'))
  onTestFinished(() => rmSync(folder, { recursive: true, force: true }))
  const write = () =>
    execFileSync(process.execPath, [MAIN, '--url=https://host.example/x/', `--folder=${folder}`])
  write()
  const [archive = '', manifest = ''] = readdirSync(folder).sort()
  const bytes = readFileSync(join(folder, archive))
  const { spec } = parse(readFileSync(join(folder, manifest), 'utf8'))
  const [{ uri, sha256, bin }] = spec.platforms
  expect([uri, sha256]).toEqual([
    `https://host.example/x/${archive}`,
    createHash('sha256').update(bytes).digest('hex'),
  ])
  // The same build gives the same bytes.
  write()
  expect(readFileSync(join(folder, archive)).equals(bytes)).toBe(true)
  execFileSync('tar', ['xzf', join(folder, archive), '-C', folder])
  const plugin = (...argv: readonly string[]) => spawnSync(join(folder, bin), argv, { encoding: 'utf8' })
  expect(plugin('--help').stdout).toContain('kprobe nodes status|verify|why|top|bundle|migrate [flags]')
  const failed = plugin('status', `--kubeconfig=${folder}/none`)
  expect([failed.status, failed.stderr]).toEqual([2, expect.stringContaining('cannot read kubeconfig')])
})

it('the archive for krew has to have a place', () => {
  const { status, stderr } = spawnSync(process.execPath, [MAIN], { encoding: 'utf8' })
  expect([status, stderr]).toEqual([1, 'npm run krew: --url is needed: where the archive will be\n'])
})
