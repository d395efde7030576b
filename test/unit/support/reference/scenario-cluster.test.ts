import { expect, test } from 'vitest'
import { readFileOfDifferences } from '../../../support/reference/differences.ts'
import { loadScenarios } from '../../../support/scenario.ts'

test('every listed difference is about a scenario, and has a reason in docs/differences.md', () => {
  const { differences, refused, notComparable } = readFileOfDifferences()
  const files = new Set(loadScenarios().map(({ file }) => file))
  const named = [...differences, ...refused].map(({ scenario }) => scenario)
  expect([...named, ...notComparable.keys()].filter(file => !files.has(file))).toEqual([])
})
