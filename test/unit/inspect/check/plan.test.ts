import { expect, it } from 'vitest'
import { planCounts, planSummary } from '../../../../src/inspect/check/plan.ts'
import type { PlanLine } from '../../../../src/reconcile/dataplane.ts'

const line = (service?: string): PlanLine => ({ verb: 'add', object: 'element', service })

it('counts Services, and names what belongs to none', () => {
  expect(planSummary([])).toBe('no difference: the kernel holds the wanted state')
  expect(planSummary([line('ns/a'), line('ns/a'), line('ns/b')])).toBe('3 changes for 2 Services')
  expect(planSummary([line(), line()])).toBe('2 changes for shared rules')
  expect(planSummary([line(), line('ns/a')])).toBe('2 changes for 1 Service and shared rules')
})

it('counts changes by verb for --summary', () => {
  const lines = [line(), line('ns/a'), { ...line('ns/b'), verb: 'remove' as const }]
  expect(planCounts(lines)).toEqual({ services: 2, shared: true, added: 2, changed: 0, removed: 1 })
})
