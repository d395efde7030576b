import { describe, expect, it } from 'vitest'
import { jsonPieces } from '../../../src/telemetry/admin-server.ts'

describe('jsonPieces', () => {
  it('writes generators as lists, and asks them piece by piece', () => {
    let made = 0
    function* items() {
      for (; made < 10_000; made++) yield { name: 'x'.repeat(50) }
    }
    const pieces = jsonPieces({ items: items() })
    const first = pieces.next().value ?? ''
    expect(made).toBeLessThan(1_000)
    const all = first + [...pieces].join('')
    expect(JSON.parse(all).items).toHaveLength(10_000)
  })

  it('has pieces of some size', () => {
    const pieces = [...jsonPieces(Array.from({ length: 10_000 }, (_, at) => at))]
    expect(pieces.length).toBeGreaterThan(2)
    expect(Math.max(...pieces.map(({ length }) => length))).toBeLessThan(20_000)
  })
})
