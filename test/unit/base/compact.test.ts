import { describe, expect, it } from 'vitest'
import { cut, joined, listFor, trimmed } from '../../../src/base/collections.ts'

describe('compact values', () => {
  it('a list cut to the items that it was given is that list, and has no others', () => {
    const list = listFor<number>(100_000)
    for (let at = 0; at < 3; at++) list[at] = at
    expect(cut(list, 3)).toEqual([0, 1, 2])
    expect(cut(list, 3)).toBe(list)
    expect(cut(listFor(5), 0)).toBe(trimmed([]))
  })

  it('joined text is its parts in order', () => {
    expect(joined(['ns', '/', 'web'])).toBe('ns/web')
    expect(joined(['ns', 'web'], '/')).toBe('ns/web')
    expect(joined([])).toBe('')
  })
})
