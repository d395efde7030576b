import { describe, expect, it } from 'vitest'
import { Comparison, ObjectIndex } from '../../../../src/source/kube/object-index.ts'

const v = (resourceVersion: number, uid = 'u1') => ({ uid, resourceVersion: String(resourceVersion) })

function indexOf(...keys: readonly string[]): ObjectIndex {
  const index = new ObjectIndex()
  for (const key of keys) index.put(key, v(10))
  return index
}

describe('comparison with a list', () => {
  it('F151: does not take for lost what takes the place of an object that was left out', () => {
    const index = indexOf('ns/a')
    const comparison = new Comparison(index, key => key.startsWith('ns/left'))
    comparison.take('ns/a', v(10))
    comparison.take('ns/left-out', v(12))
    index.put('ns/left-out', v(14))
    expect(comparison.end()).toBe(0)
  })

  it('does not take for lost what is newer than the list', () => {
    const index = indexOf('changed', 'deleted', 'recreated')
    index.put('changed', v(25))
    index.put('added', v(26))
    index.remove('deleted', v(27))
    const comparison = new Comparison(index, () => false)
    comparison.take('changed', v(15))
    comparison.take('deleted', v(10))
    comparison.take('recreated', v(10))
    expect(comparison.end()).toBe(3)
    expect(comparison.confirmed('20')).toBe(0)
  })

  it('F30: takes what is listed for lost although an earlier list had lacked it', () => {
    const index = indexOf('hidden')
    index.removeUnlisted('hidden', '19')
    const comparison = new Comparison(index, () => false)
    comparison.take('hidden', v(10))
    expect(comparison.end()).toBe(1)
    expect(comparison.confirmed('20')).toBe(1)
  })
})
