import { execFileSync, spawnSync } from 'node:child_process'
import { mkdirSync, readdirSync, readFileSync, rmSync, symlinkSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { expect, it } from 'vitest'
import { temporaryFolder } from '../../support/folder.ts'

const ROOT = fileURLToPath(new URL('../../..', import.meta.url))

it('npm start serves a copy of the examples, and keeps what was edited there', () => {
  const folder = temporaryFolder()
  mkdirSync(join(folder, 'deploy/examples/all-ip'), { recursive: true })
  for (const name of ['a.yaml', 'b.json', 'all-ip/c.yaml'])
    writeFileSync(join(folder, 'deploy/examples', name), 'shipped')
  const copy = () =>
    execFileSync('sh', ['-euc', `. ${ROOT}/deploy/prepare.sh; copy_examples`], { cwd: folder })
  copy()
  writeFileSync(join(folder, 'examples/a.yaml'), 'edited')
  rmSync(join(folder, 'examples/b.json'))
  copy()
  expect(readdirSync(join(folder, 'examples')).sort()).toEqual(['a.yaml', 'b.json'])
  expect(readFileSync(join(folder, 'examples/a.yaml'), 'utf8')).toBe('edited')
  expect(readFileSync(join(ROOT, 'deploy/start.sh'), 'utf8')).toContain('--source=file:examples ')
})

it('npm start empties no folder that node_modules links to', () => {
  const folder = temporaryFolder()
  for (const name of ['checkout', 'shared', 'bin']) mkdirSync(join(folder, name))
  writeFileSync(join(folder, 'checkout/package-lock.json'), '')
  writeFileSync(join(folder, 'bin/npm'), '#!/bin/sh\ntouch ran\n', { mode: 0o755 })
  symlinkSync('../shared', join(folder, 'checkout/node_modules'))
  const { status, stderr } = spawnSync('sh', ['-euc', `. ${ROOT}/deploy/prepare.sh; install_packages`], {
    cwd: join(folder, 'checkout'),
    env: { ...process.env, PATH: `${folder}/bin:${process.env.PATH}` },
    encoding: 'utf8',
  })
  expect(stderr).toMatch(/^node_modules is a link to \.\.\/shared, which npm ci would empty; /)
  expect(status).toBe(1)
  expect(readdirSync(join(folder, 'checkout'))).not.toContain('ran')
})

it('git ignores what npm start and npm pack write', () => {
  const asked = ['examples/20-shop.yaml', 'kprobe-0.1.0.tgz']
  const { stdout } = spawnSync('git', ['check-ignore', ...asked], { cwd: ROOT, encoding: 'utf8' })
  expect(stdout.trim().split('\n')).toEqual(asked)
})
