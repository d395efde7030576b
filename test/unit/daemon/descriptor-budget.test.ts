import { describe, expect, it } from 'vitest'
import { apiDescriptors, daemonDescriptors } from '../../../src/daemon/process-room.ts'

const roomOf = (descriptors: number | undefined) => ({ descriptors, memoryBytes: undefined })

describe('daemonDescriptors', () => {
  it.each([
    ['unknown', undefined],
    ['high', 1 << 20],
    ['just enough', 3 * 20_480 + 128],
  ])('F140: gives every part what it needs where the limit is %s', (_, limit) => {
    expect(daemonDescriptors(roomOf(limit))).toEqual({
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
      for (const budget of [daemonDescriptors(roomOf(limit)), apiDescriptors(roomOf(limit))]) {
        const parts = Object.values(budget)
        const given = parts.reduce((sum, part) => sum + part, 0)
        expect(limit - given).toBeGreaterThanOrEqual(Math.min(128, limit / 2))
        expect(Math.min(...parts)).toBeGreaterThanOrEqual(0)
      }
    },
  )

  it('F140: divides by weight what is not enough for all', () => {
    expect(daemonDescriptors(roomOf(1_024))).toEqual({
      healthz: 49,
      metrics: 49,
      healthChecks: 99,
      healthCheckListeners: 298,
      api: 99,
      relay: 298,
    })
    expect(apiDescriptors(roomOf(1_024))).toMatchObject({ metrics: 298, api: 597 })
  })
})
