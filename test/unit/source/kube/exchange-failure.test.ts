import { describe, expect, it } from 'vitest'
import { WireError } from '../../../../src/base/errors.ts'
import { ApiError } from '../../../../src/source/kube/api-client.ts'
import { FailureError, failureOfError, failureOfStatus } from '../../../../src/source/kube/exchange.ts'
import type { ApiStatus } from '../../../../src/source/kube/wire/encodings.ts'

function status(change: Partial<ApiStatus>): ApiStatus {
  return { code: 0, reason: '', message: '', causes: [], retryAfterSeconds: undefined, ...change }
}

describe('failures', () => {
  it('differ by the code of the answer', () => {
    const kinds = [400, 401, 403, 404, 405, 410, 422, 429, 500, 502, 503, 504].map(
      code => failureOfStatus(code, undefined).kind,
    )
    expect(kinds).toEqual([
      'invalid',
      'unauthorized',
      'forbidden',
      'absent',
      'unexpected',
      'expired',
      'invalid',
      'throttled',
      'internal',
      'unavailable',
      'unavailable',
      'unavailable',
    ])
  })

  it('A3: differ by the reason where the code is the same', () => {
    const kinds = ['Expired', 'Gone', 'InternalError', 'TooManyRequests', 'Forbidden', 'Whatever', ''].map(
      reason => failureOfStatus(0, status({ reason })).kind,
    )
    expect(kinds).toEqual([
      'expired',
      'expired',
      'internal',
      'throttled',
      'forbidden',
      'unexpected',
      'unexpected',
    ])
  })

  it('A13: take what the header says before what the body says, up to five minutes', () => {
    const body = status({ retryAfterSeconds: 9 })
    expect(failureOfStatus(429, body, 7_000).retryAfterMs).toBe(7_000)
    expect(failureOfStatus(429, body).retryAfterMs).toBe(9_000)
    expect(failureOfStatus(503, status({ retryAfterSeconds: 1e9 })).retryAfterMs).toBe(300_000)
    expect(failureOfStatus(503, status({ retryAfterSeconds: -5 })).retryAfterMs).toBe(0)
    expect(failureOfStatus(500, undefined).retryAfterMs).toBe(0)
  })

  it('have a text of one line with a bound', () => {
    const { text } = failureOfStatus(
      403,
      status({ reason: 'Forbidden', message: `no\nway ${'x'.repeat(999)}` }),
    )
    expect(text).toMatch(/^status 403 Forbidden: no\\u\{a\}way x+\.\.\.$/)
    expect(text.length).toBe(300)
    const plain = failureOfStatus(401, status({ reason: 'Unauthorized', message: 'Unauthorized' }))
    expect(plain.text).toBe('status 401 Unauthorized')
  })

  it('are made of errors, with bugs of our own apart', () => {
    const failure = failureOfStatus(404, undefined)
    expect(failureOfError(new FailureError(failure))).toBe(failure)
    expect(failureOfError(new ApiError('lost', 'cut')).kind).toBe('connection')
    expect(failureOfError(new WireError('odd')).kind).toBe('broken')
    expect(failureOfError(new TypeError('oops'))).toEqual({ kind: 'fault', text: 'oops', retryAfterMs: 0 })
    expect(failureOfError('thrown').text).toBe('thrown')
  })
})
