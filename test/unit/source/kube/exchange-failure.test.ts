import { describe, expect, it } from 'vitest'
import { WireError } from '../../../../src/base/errors.ts'
import { ApiError } from '../../../../src/source/kube/api-client.ts'
import { FailureError, failureOfError, failureOfStatus } from '../../../../src/source/kube/failure.ts'
import type { ApiStatus } from '../../../../src/source/kube/wire/encodings.ts'

function status(change: Partial<ApiStatus>): ApiStatus {
  return { code: 0, reason: '', message: '', causes: [], retryAfterSeconds: undefined, ...change }
}

describe('failures', () => {
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
