import { describe, expect, it } from 'vitest'
import { type DescriptorUse, descriptorBudget } from '../../../src/daemon/process-room.ts'

const DAEMON: readonly DescriptorUse[] = ['healthz', 'metrics', 'healthChecks', 'healthCheckListeners']
const ALL: readonly DescriptorUse[] = [...DAEMON, 'api', 'relay']

describe('descriptorBudget', () => {
  it.each([
    ['unknown', undefined],
    ['high', 1 << 20],
    ['just enough', 512 + 512 + 1_024 + 8_192 + 2_048 + 20_480 + 128],
  ])('F140: gives every part what it needs where the limit is %s', (_, limit) => {
    expect(descriptorBudget(limit, ALL)).toEqual({
      healthz: 512,
      metrics: 512,
      healthChecks: 1_024,
      healthCheckListeners: 8_192,
      api: 2_048,
      relay: 20_480,
    })
  })

  it.each([64, 100, 256, 1_024, 4_096, 8_192, 16_384, 30_000])(
    'F140: leaves a reserve of 128, or of half, of %i descriptors',
    limit => {
      const budgets = [
        descriptorBudget(limit, ALL),
        { ...descriptorBudget(limit, DAEMON, ['relay']), api: 0 },
      ]
      for (const parts of budgets.map(budget => Object.values(budget))) {
        const given = parts.reduce((sum, part) => sum + part, 0)
        expect(limit - given).toBeGreaterThanOrEqual(Math.min(128, limit / 2))
        expect(Math.min(...parts)).toBeGreaterThanOrEqual(0)
      }
    },
  )

  it('F140: divides by weight what is not enough for all, and keeps a part for what is used later only', () => {
    const weighed = { healthz: 89, metrics: 89, healthChecks: 179, healthCheckListeners: 539 }
    expect(descriptorBudget(1_024, DAEMON)).toMatchObject(weighed)
    expect(descriptorBudget(1_024, DAEMON, ['relay'])).toMatchObject({ relay: 81, healthCheckListeners: 490 })
    expect(descriptorBudget(1 << 20, DAEMON, ['relay'])).toMatchObject({ relay: 20_480 })
  })

  it('F140: hands on what a part does not need', () => {
    const { healthz, healthChecks, healthCheckListeners } = descriptorBudget(8_192, DAEMON)
    expect([healthz, healthChecks]).toEqual([512, 1_024])
    expect(healthCheckListeners).toBe(8_192 - 128 - 512 - 512 - 1_024)
  })
})
