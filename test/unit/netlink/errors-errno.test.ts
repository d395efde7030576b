import { execFileSync } from 'node:child_process'
import { constants } from 'node:os'
import { expect, it } from 'vitest'
import { errnoName, errnoNumber, errnoWords, knownErrors } from '../../../src/netlink/errors.ts'

it('has the C library’s words for every number', () => {
  const script = 'import os, sys; print("\\n".join(os.strerror(int(number)) for number in sys.argv[1:]))'
  const numbers = knownErrors().map(([errno]) => String(errno))
  const words = execFileSync('python3', ['-c', script, ...numbers], {
    encoding: 'utf8',
    env: { LC_ALL: 'C' },
  })
  expect(knownErrors().map(([, , text]) => text)).toEqual(words.trimEnd().split('\n'))
})

it('has the platform’s name for every number that Node knows', () => {
  const names = new Map<string, number>(Object.entries(constants.errno))
  const compared = knownErrors().filter(([, name]) => names.has(name))
  expect(compared.length).toBeGreaterThan(30)
  for (const [errno, name] of compared) expect([name, names.get(name)]).toEqual([name, errno])
})

it('gives numbers beyond the table a name of their own', () => {
  expect(errnoName(4103)).toBe('errno 4103')
  expect(errnoWords(4103)).toBe('Unknown error')
  expect(errnoNumber('EWHAT')).toBe(0)
})
