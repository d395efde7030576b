import { describe, expect, it } from 'vitest'
import { nearest } from '../../../src/base/text.ts'

describe('nearest', () => {
  it('finds what was probably meant, and nothing when all are far', () => {
    expect(nearest('dmup', ['run', 'dump', 'plan'])).toBe('dump')
    expect(nearest('frobnicate', ['run', 'dump', 'plan'])).toBeUndefined()
  })
})
