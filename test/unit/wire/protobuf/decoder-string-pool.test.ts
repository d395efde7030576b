import { describe, expect, it, vi } from 'vitest'
import { StringPool } from '../../../../src/wire/protobuf/decoder.ts'

const textIn = (pool: StringPool, text: string): string => {
  const bytes = Buffer.from(`<${text}>`)
  return pool.text(bytes, 1, bytes.length - 1)
}

describe('a pool of strings', () => {
  it('gives the text of any bytes, again and again', () => {
    const pool = new StringPool()
    const texts = ['', 'a', 'node-1', 'node-2', 'ä€😀', 'x'.repeat(64), 'x'.repeat(65), 'x'.repeat(500)]
    for (let round = 0; round < 3; round++) for (const text of texts) expect(textIn(pool, text)).toBe(text)
  })

  it('makes a string once only', () => {
    const pool = new StringPool()
    const bytes = Buffer.from('zone-a')
    const made = vi.spyOn(bytes, 'toString')
    expect([1, 2, 3].map(() => pool.text(bytes, 0, bytes.length))).toEqual(['zone-a', 'zone-a', 'zone-a'])
    expect(made).toHaveBeenCalledTimes(1)
  })

  it('stays right when more strings come than it has room for', () => {
    const pool = new StringPool()
    const texts = Array.from({ length: 20_000 }, (_, index) => `n${index}`)
    for (let round = 0; round < 2; round++) expect(texts.map(text => textIn(pool, text))).toEqual(texts)
  })
})
