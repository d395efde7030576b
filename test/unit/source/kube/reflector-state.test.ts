import { describe, expect, it } from 'vitest'
import type { FailureKind } from '../../../../src/source/kube/exchange.ts'
import {
  type Attempted,
  afterList,
  afterProgress,
  decide,
  isBackwards,
  type ReflectorState,
  START,
} from '../../../../src/source/kube/reflector-state.ts'

const WATCHING = afterProgress(afterList(START, '100'), '120')

function fail(state: ReflectorState, during: Attempted, kind: FailureKind, nowMs = 0) {
  return decide(state, { kind: 'failed', during, failure: { kind, text: kind, retryAfterMs: 7 } }, nowMs)
}

describe('state of a reflector', () => {
  it('leads from a list to a watch, which moves the position', () => {
    expect(afterList(START, '100')).toMatchObject({ next: 'watch', position: '100', consistent: false })
    expect(WATCHING).toMatchObject({ next: 'watch', position: '120' })
  })

  it('A12: goes on watching where no watch was refused, and lists from the position after other failures', () => {
    const kinds = {
      watch: ['throttled', 'unreachable', 'connection', 'broken'],
      list: ['unauthorized', 'forbidden', 'absent', 'internal', 'unavailable', 'unexpected'],
    } as const
    for (const next of ['watch', 'list'] as const)
      for (const kind of kinds[next]) {
        const { state, wait, trouble } = fail(WATCHING, 'watch', kind)
        expect(state).toMatchObject({ next, position: '120', consistent: false, plain: false })
        expect(wait).toEqual({ kind: 'backoff', atLeastMs: 7 })
        expect(trouble?.text).toBe(next === 'list' ? `cannot watch: ${kind}; listing instead` : kind)
      }
  })

  it('A12: lists after the second watch in a row that lost its connection', () => {
    const { state } = fail(WATCHING, 'watch', 'connection')
    expect(fail(state, 'watch', 'connection').state).toMatchObject({ next: 'list', plain: true })
    expect(fail(afterProgress(state, '121'), 'watch', 'connection').state.next).toBe('watch')
  })

  it('A3: lists at once when the position has expired, from there on', () => {
    const { state, wait } = fail(WATCHING, 'watch', 'expired')
    expect(state).toMatchObject({ next: 'list', position: '120', consistent: false })
    expect(wait.kind).toBe('none')
  })

  it('A5: lists from the store when the server does not know the position yet', () => {
    expect(fail(WATCHING, 'watch', 'too-large').state).toMatchObject({ next: 'list', consistent: true })
    const listing = fail(WATCHING, 'watch', 'expired').state
    expect(fail(listing, 'list', 'too-large')).toMatchObject({
      state: { consistent: true },
      wait: { kind: 'none' },
    })
  })

  it('keeps a demand for a consistent list over whatever fails meanwhile', () => {
    const asking = decide(WATCHING, { kind: 'lost-events' }, 0).state
    const kinds: readonly FailureKind[] = [
      'connection',
      'expired',
      'unavailable',
      'throttled',
      'broken',
      'fault',
    ]
    for (const kind of kinds)
      expect(fail(asking, 'list', kind).state).toMatchObject({ next: 'list', consistent: true })
  })

  it('F29: keeps a doubt until a list was taken', () => {
    const doubting = decide(WATCHING, { kind: 'vanished' }, 0).state
    const later = fail(fail(doubting, 'list', 'connection').state, 'list', 'expired').state
    expect(later).toMatchObject({ doubted: true, consistent: true })
    expect(afterList(later, '200').doubted).toBe(false)
  })

  it('A28: takes an older list only when consistent ones have been older for ten seconds', () => {
    expect(isBackwards(WATCHING, '119', 0)).toBe(true)
    expect(isBackwards(WATCHING, '120', 0)).toBe(false)
    expect(isBackwards(WATCHING, 'opaque', 0)).toBe(false)
    const first = decide(WATCHING, { kind: 'backwards' }, 1_000)
    expect(first).toMatchObject({ state: { consistent: true }, wait: { kind: 'none' } })
    const second = decide(first.state, { kind: 'backwards' }, 1_100)
    expect(second.wait).toEqual({ kind: 'pause', ms: 10_000 })
    expect(isBackwards(second.state, '119', 10_999)).toBe(true)
    expect(isBackwards(second.state, '119', 11_000)).toBe(false)
  })

  it('A10: takes a watch that ends at once for a failure, unless it brought something', () => {
    const end = (livedMs: number, progress: boolean) =>
      decide(WATCHING, { kind: 'ended', livedMs, progress }, 0).wait.kind
    expect([end(999, false), end(1_000, false), end(0, true)]).toEqual(['backoff', 'none', 'none'])
  })

  it('A3: counts a list as worth while when its watch lived, though nothing happened', () => {
    const twice = afterList(afterList(START, '100'), '110')
    const lived = (livedMs: number) => decide(twice, { kind: 'ended', livedMs, progress: false }, 0).state
    expect(fail(lived(9_999), 'watch', 'expired').wait.kind).toBe('backoff')
    expect(fail(lived(10_000), 'watch', 'expired').wait.kind).toBe('none')
  })

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
