import { describe, expect, it } from 'vitest'
import { joined, trimmed } from '../../../src/base/compact.ts'

describe('compact values', () => {
  it('a trimmed list has the items of the list it was made from, and is another list', () => {
    const list = [1, 2, 3]
    const copy = trimmed(list)
    list.push(4)
    expect(copy).toEqual([1, 2, 3])
  })

  it('all empty lists are one', () => {
    expect(trimmed([])).toBe(trimmed([]))
  })

  it('joined text is its parts in order', () => {
    expect(joined(['ns', '/', 'web'])).toBe('ns/web')
    expect(joined([])).toBe('')
  })
})
