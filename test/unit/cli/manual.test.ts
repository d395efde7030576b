import { spawnSync } from 'node:child_process'
import { describe, expect, it } from 'vitest'
import { runCommand } from '../../../src/commands.ts'
import { FakeIo } from '../../support/fake-io.ts'

async function printed(...words: readonly string[]): Promise<string> {
  const io = new FakeIo()
  expect(await runCommand(words, io)).toBe(0)
  return io.stdout
}

const commands = [...(await printed('help')).matchAll(/^ {2}([a-z]+) {3}/gm)].map(([, name = '']) => name)
const hasGroff = spawnSync('groff', ['--version']).status === 0

describe('the manual page', () => {
  it('of kprobe names every command', async () => {
    const page = await printed('help', '--man')
    expect(page).toMatch(/^\.TH KPROBE 1 "/)
    expect(commands.length).toBeGreaterThan(10)
    for (const name of commands) expect(page).toContain(`.BR kprobe\\-${name} (1)`)
  })

  it.each(commands)('of %s has every flag of its help', async name => {
    const page = await printed('help', name, '--man')
    const flags = [...(await printed(name, '--help-all')).matchAll(/^ {2}(?:-\w, )?(--?[\w-]+)/gm)]
    const plain = page.replaceAll('\\-', '-')
    for (const [, flag = ''] of flags) if (flag !== '--help-all') expect(plain).toContain(flag)
    expect(page).not.toMatch(/^\.[^A-Z]|^'/m)
  })

  it.skipIf(!hasGroff).each(['', ...commands])('of %s is what groff reads without a warning', async name => {
    const words = name === '' ? [] : [name]
    const page = await printed('help', ...words, '--man')
    const { stderr } = spawnSync('groff', ['-man', '-ww', '-Tutf8'], { input: page, encoding: 'utf8' })
    expect(stderr).toBe('')
  })
})
