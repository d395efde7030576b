import { describe, expect, it } from 'vitest'
import { type ReceiptLike, Receipts } from '../../../src/telemetry/admin-server.ts'

const RECEIPT: ReceiptLike = {
  outcome: 'committed',
  generation: 7,
  foreign: false,
  refusals: [],
  bytes: 100,
  messages: 2,
  durationMs: 1.5,
}

describe('Receipts', () => {
  it('keeps the last 128, oldest first', () => {
    let now = 1_800_000_000_000
    const receipts = new Receipts(() => now++)
    for (let at = 0; at < 200; at++) receipts.add('change', at, RECEIPT)
    expect(receipts.lines).toHaveLength(128)
    expect(receipts.lines[0]).toEqual({
      time: '2027-01-15T08:00:00.072Z',
      reason: 'change',
      changes: 72,
      ...RECEIPT,
    })
    expect(receipts.lines.at(-1)?.changes).toBe(199)
  })

  it('keeps the words of errors and nothing else of them, for twenty refusals', () => {
    const receipts = new Receipts(() => 0)
    const error = Object.assign(new Error('EINVAL'), { detail: 'secret' })
    const refusals = Array.from({ length: 50 }, () => ({ services: ['ns/a'], error }))
    receipts.add('change', 1, { ...RECEIPT, outcome: 'refused', refusals })
    expect(receipts.lines[0]?.refusals).toHaveLength(20)
    expect(receipts.lines[0]?.refusals[0]).toEqual({ services: ['ns/a'], error: 'EINVAL' })
  })
})
