import { spawnSync } from 'node:child_process'
import { chmodSync, mkdirSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { beforeEach, expect, it } from 'vitest'
import { type ApiProgram, isLine, readApiProgram } from '../../../src/api/command.ts'
import { temporaryFolder } from '../../support/folder.ts'

let folder = ''
let complaints: string[] = []

beforeEach(() => {
  folder = temporaryFolder()
  complaints = []
  mkdirSync(join(folder, 'bin'))
  for (const name of ['bin/tool', 'a b', 'bin/c d']) program(name)
})

function program(name: string): void {
  writeFileSync(join(folder, name), '#!/bin/sh\n', { mode: 0o755 })
}

function read(given: string, path?: string): Promise<ApiProgram> {
  const fail = (message: string) => complaints.push(message)
  return readApiProgram(given, { args: ['x', 'y z'], path: path ?? `/nowhere:${join(folder, 'bin')}` }, fail)
}

it('is otherwise a line for the shell, when there are blanks in it', async () => {
  const long = `tool ${'x'.repeat(300)}`
  for (const given of ['tool -n', ' tool', '/bin/cat -n | wc', 'A=/b tool', long]) {
    const found = await read(given)
    const line = `(set -o pipefail) 2>/dev/null && set -o pipefail; ${given}`
    expect(found).toEqual({ name: given, command: '/bin/sh', args: ['-c', line] })
    expect(isLine(found)).toBe(true)
  }
  expect(complaints).toEqual([])
})

it('is refused when it is not there', async () => {
  writeFileSync(join(folder, 'data'), '')
  writeFileSync(join(folder, 'bin/locked'), '')
  chmodSync(join(folder, 'bin/locked'), 0o644)
  for (const given of ['', ' ', 'a\0b', 'nothing', join(folder, 'none'), join(folder, 'data'), folder])
    await read(given)
  for (const given of ['locked', join(folder, 'none -n'), `${folder}/data -n`]) await read(given)
  expect(complaints).toEqual([
    '"" names no program',
    '" " names no program',
    '"a\\u0000b" names no program',
    '"nothing": no such program',
    expect.stringMatching(/none": no such program$/),
    expect.stringMatching(/data": is not executable$/),
    expect.stringMatching(/": is not a file$/),
    '"locked": is not executable',
    expect.stringMatching(/none -n": .*none: no such program$/),
    expect.stringMatching(/data -n": .*data: is not executable$/),
  ])
})

it('fails with any command of a pipe where the shell has pipefail, and runs as ever where it has not', async () => {
  const { args } = await read('false | cat')
  expect(spawnSync('bash', args).status).toBe(1)
  const { args: fine } = await read('echo out | cat')
  for (const shell of ['bash', 'sh', 'dash'])
    expect(spawnSync(shell, fine, { encoding: 'utf8' })).toMatchObject({
      status: 0,
      stdout: 'out\n',
      stderr: '',
    })
})
