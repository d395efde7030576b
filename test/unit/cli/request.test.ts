import { writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { beforeEach, expect, it } from 'vitest'
import { failureText } from '../../../src/base/errors.ts'
import { EXIT_USAGE } from '../../../src/cli/io.ts'
import { readRequest, usageErrors, usageWarnings } from '../../../src/cli/request.ts'
import { FakeIo } from '../../support/fake-io.ts'
import { temporaryFolder } from '../../support/folder.ts'

let io: FakeIo

beforeEach(() => {
  io = new FakeIo()
})

it('reads the file that --config names, and names what it has in vain', async () => {
  const path = join(temporaryFolder(), 'config.yaml')
  const head = 'apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n'
  writeFileSync(path, `${head}clusterCIDRS: 10.0.0.0/8\n`)
  const request = await readRequest([`--config=${path}`], io, { command: 'plan', extra: [] })
  expect(request).toMatchObject({ config: { source: { kind: 'kube' } } })
  expect(io.stderr).toMatch(/^kprobe plan: .*clusterCIDRS/)
})

it('tells every error with its place, and where help is', () => {
  const errors = [
    { path: '--v', message: 'is no level' },
    { path: 'c.yaml:3:15: conntrack.min', message: 'cannot be negative' },
  ]
  expect(usageErrors(io, 'run', errors)).toBe(EXIT_USAGE)
  expect(io.stderr).toBe(
    'kprobe run: --v: is no level\n' +
      'kprobe run: c.yaml:3:15: conntrack.min: cannot be negative\n' +
      'see `kprobe run --help`\n',
  )
})

it('keeps what others wrote on its line', () => {
  usageErrors(io, 'run', [{ path: '--a\nb\u001b[31m', message: 'x\u202ey' }])
  usageWarnings(io, 'plan', ['c.yaml:1:1: a\rb: no such field'])
  expect(io.stderr.split('\n')).toHaveLength(4)
  for (const character of ['\u001b', '\u202e', '\r']) expect(io.stderr).not.toContain(character)
})

it('gives what a system error names and the text around it does not', () => {
  const at = (path: string) =>
    Object.assign(new Error(`EACCES: permission denied, open '${path}'`), {
      syscall: 'open',
      code: 'EACCES',
      path,
    })
  const wrapped = (text: string) => failureText(new Error(text, { cause: at('/etc/b') }))
  expect(wrapped('a: cannot read (EACCES)')).toContain("open '/etc/b'")
  expect(wrapped('/etc/b: cannot read (EACCES)')).toBe('/etc/b: cannot read (EACCES)')
})

it('gives the causes of a failure, each once', () => {
  const cause = new Error('refused')
  expect(failureText(new Error('cannot open', { cause }))).toBe('cannot open: refused')
  expect(failureText(new Error('cannot open: refused', { cause }))).toBe('cannot open: refused')
  expect(failureText('text')).toBe('text')
})
