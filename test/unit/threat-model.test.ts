import { existsSync, readFileSync } from 'node:fs'
import { fileURLToPath } from 'node:url'
import { expect, it } from 'vitest'

const TOP = fileURLToPath(new URL('../..', import.meta.url))
const PAGE = readFileSync(`${TOP}docs/threat-model.md`, 'utf8')

/** `path` and the ids behind it, as in `test/faults/x.test.ts` F33 F34. */
const CLAIMS = [...PAGE.matchAll(/`(test\/[^`]+\.(?:test\.ts|yaml))`((?: F\d{2,3})*)/g)].map(
  ([, path = '', ids = '']) => ({
    path,
    ids: ids.trim().split(' ').filter(Boolean),
  }),
)

it('docs/threat-model.md names tests that are there, whose titles have the ids', () => {
  expect(CLAIMS.length).toBeGreaterThan(20)
  const wrong = CLAIMS.flatMap(({ path, ids }) => {
    if (!existsSync(TOP + path)) return [`${path} is not there`]
    const text = readFileSync(TOP + path, 'utf8')
    const titles = [...text.matchAll(/(['"`])((?:(?!\1)[^\n])*\bF\d{2,3}\b(?:(?!\1)[^\n])*)\1/g)].join()
    return ids
      .filter(id => !new RegExp(`\\b${id}\\b`).test(titles))
      .map(id => `no title of ${path} has ${id}`)
  })
  expect(wrong).toEqual([])
})

it('docs/threat-model.md names a test in every row of an attack', () => {
  const attacks = PAGE.split('\n## ').filter(section => section.includes('| attack |'))
  expect(attacks.length).toBeGreaterThanOrEqual(6)
  const rows = attacks.flatMap(section => section.split('\n').filter(line => /^\| (?!attack |-)/.test(line)))
  expect(rows.filter(row => !row.includes('`test/'))).toEqual([])
})
