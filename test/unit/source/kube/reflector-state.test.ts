import { describe, expect, it } from 'vitest'
import type { FailureKind } from '../../../../src/source/kube/failure.ts'
import {
  type Attempted,
  afterList,
  decide,
  type ReflectorState,
  START,
} from '../../../../src/source/kube/reflector-state.ts'

function fail(state: ReflectorState, during: Attempted, kind: FailureKind, nowMs = 0) {
  return decide(state, { kind: 'failed', during, failure: { kind, text: kind, retryAfterMs: 7 } }, nowMs)
}

describe('state of a reflector', () => {
  it('A20: lists without a stream where streams fail, until a list was taken', () => {
    for (const state of [
      fail(START, 'streaming list', 'invalid').state,
      fail(START, 'streaming list', 'broken').state,
      decide(START, { kind: 'cut', text: '' }, 0).state,
      decide(START, { kind: 'late' }, 0).state,
    ]) {
      expect(state).toMatchObject({ next: 'list', plain: true })
      expect(afterList(state, '5').plain).toBe(false)
    }
    expect(fail(START, 'streaming list', 'unreachable').state.plain).toBe(false)
  })
})
