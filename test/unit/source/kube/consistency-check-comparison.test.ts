import { describe, expect, it } from 'vitest'
import { Comparison } from '../../../../src/source/kube/consistency-check.ts'
import { ObjectIndex } from '../../../../src/source/kube/object-index.ts'

const v = (resourceVersion: number, uid = 'u1') => ({ uid, resourceVersion: String(resourceVersion) })

const object = (key: string) => ({ key, bornS: 0 })

function indexOf(...keys: readonly string[]): ObjectIndex {
  const index = new ObjectIndex()
  for (const key of keys) index.put(key, v(10))
  return index
}

describe('comparison with a list', () => {
  it('F151: does not take for lost what there is no room for, nor what has lost its place meanwhile', () => {
    const index = indexOf('a', 'going')
    const comparison = new Comparison(index, ({ key }) => key !== 'a')
    comparison.take(object('a'), v(10))
    comparison.take(object('beyond'), v(12))
    comparison.take(object('going'), v(12))
    index.forget('going')
    index.put('beyond', v(14))
    expect(comparison.end()).toBe(1)
    expect(comparison.confirmed('20')).toBe(0)
  })

  it('does not take for lost what is newer than the list', () => {
    const index = indexOf('changed', 'deleted', 'recreated')
    index.put('changed', v(25))
    index.put('added', v(26))
    index.remove('deleted', v(27))
    const comparison = new Comparison(index, () => false)
    comparison.take(object('changed'), v(15))
    comparison.take(object('deleted'), v(10))
    comparison.take(object('recreated'), v(10))
    expect(comparison.end()).toBe(3)
    expect(comparison.confirmed('20')).toBe(0)
  })

  it('F30: takes what is listed for lost although an earlier list had lacked it', () => {
    const index = indexOf('hidden')
    index.removeUnlisted('hidden', '19')
    const comparison = new Comparison(index, () => false)
    comparison.take(object('hidden'), v(10))
    expect(comparison.end()).toBe(1)
    expect(comparison.confirmed('20')).toBe(1)
  })
})
