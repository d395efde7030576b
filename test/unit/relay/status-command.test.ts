import { expect, it } from 'vitest'
import { runCommand } from '../../../src/commands.ts'
import { FakeIo } from '../../support/fake-io.ts'

async function statusOf(...flags: string[]): Promise<{ code: number; out: string; err: string }> {
  const io = new FakeIo({})
  const code = await runCommand(['relay', 'status', ...flags], io)
  return { code, out: io.stdout, err: io.stderr }
}

it('kprobe relay status names every wrong flag', async () => {
  const flags = [
    '--relay=tcp://192.0.2.1:1',
    '--service=cart',
    '--at-least=0%',
    '--timeout=5',
    '--revision=x',
    'y',
  ]
  const { code, err } = await statusOf(...flags)
  expect(code).toBe(2)
  for (const part of [
    '192.0.2.1:1 needs TLS',
    '"cart" is not',
    '"0%" is neither',
    'is for --wait',
    '"x" is not',
    '"y": no',
  ])
    expect(err).toContain(part)
  const away = await statusOf('--relay=unix:///nonexistent/nowhere.sock')
  expect([away.code, away.out]).toEqual([1, ''])
  expect(away.err).toMatch(/nowhere\.sock: .*ENOENT/)
})

it('kprobe status with a flag of its last release runs kprobe relay status, and says so', async () => {
  const io = new FakeIo({})
  const code = await runCommand(['status', '--relay=unix:///nonexistent/nowhere.sock'], io)
  expect(code).toBe(1)
  expect(io.stderr).toMatch(/^kprobe status: these flags are now those of `kprobe relay status`/)
  expect(io.stderr).toMatch(/nowhere\.sock: .*ENOENT/)
})
