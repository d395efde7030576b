import { WireError } from '../../base/errors.ts'
import { oneLine } from '../../base/text.ts'
import { ApiError, type ApiErrorKind, RETRY_AFTER_MS_MAX } from './api-client.ts'
import type { ApiStatus } from './wire/encodings.ts'

export type FailureKind =
  /** The resource version or the continue token is no longer known. */
  | 'expired'
  /** The resource version belongs to another history: that of another cluster, or of a store that was restored. */
  | 'another-history'
  /** The resource version is not known yet. */
  | 'too-large'
  /** The server does not understand the parameters. */
  | 'invalid'
  | 'unauthorized'
  | 'forbidden'
  | 'absent'
  | 'throttled'
  | 'internal'
  /** Any other 5xx. */
  | 'unavailable'
  /** Any other status. */
  | 'unexpected'
  /** No connection: no request reached the server. */
  | 'unreachable'
  /** No whole answer. */
  | 'connection'
  | 'broken'
  /** The server did not cause it. */
  | 'fault'

export interface Failure {
  readonly kind: FailureKind
  /** One line. */
  readonly text: string
  /** The wait that the server requests, milliseconds, 0 to 300,000. */
  readonly retryAfterMs: number
}

export class FailureError extends Error {
  override readonly name = 'FailureError'
  readonly failure: Failure

  constructor(failure: Failure) {
    super(failure.text)
    this.failure = failure
  }
}

const TEXT_LENGTH_MAX = 300

/** Builds a failure from the code of an answer and the Status in its body, if any; or from a Status in a watch. */
export function failureOfStatus(code: number, status: ApiStatus | undefined, retryAfterMs?: number): Failure {
  const { reason = '', message = '', causes = [], retryAfterSeconds = 0 } = status ?? {}
  const words = reason === '' ? `status ${code}` : `status ${code} ${reason}`
  return {
    kind: isTooLarge(message, causes) ? 'too-large' : kindOf(code, reason),
    text: shortened(message === '' || message === reason ? words : `${words}: ${message}`),
    retryAfterMs: Math.min(RETRY_AFTER_MS_MAX, retryAfterMs ?? Math.max(0, retryAfterSeconds * 1_000)),
  }
}

const UNSENT: readonly ApiErrorKind[] = ['unreachable', 'tls', 'credentials']

export function failureOfError(error: unknown): Failure {
  if (error instanceof FailureError) return error.failure
  const text = shortened(error instanceof Error ? error.message : String(error))
  if (error instanceof ApiError)
    return { kind: UNSENT.includes(error.kind) ? 'unreachable' : 'connection', text, retryAfterMs: 0 }
  if (error instanceof WireError) return { kind: 'broken', text, retryAfterMs: 0 }
  return { kind: 'fault', text, retryAfterMs: 0 }
}

/** The reason of a Status by which a relay refuses a resource version of another history. */
export const ANOTHER_HISTORY = 'AnotherHistory'

/** Servers before 1.19 name no cause. */
function isTooLarge(message: string, causes: readonly string[]): boolean {
  return causes.includes('ResourceVersionTooLarge') || message.includes('Too large resource version')
}

function kindOf(code: number, reason: string): FailureKind {
  if (reason === ANOTHER_HISTORY) return 'another-history'
  if (code === 410 || reason === 'Expired' || reason === 'Gone') return 'expired'
  if (code === 400 || code === 422 || reason === 'Invalid' || reason === 'BadRequest') return 'invalid'
  if (code === 401 || reason === 'Unauthorized') return 'unauthorized'
  if (code === 403 || reason === 'Forbidden') return 'forbidden'
  if (code === 404 || reason === 'NotFound') return 'absent'
  if (code === 429 || reason === 'TooManyRequests') return 'throttled'
  if (code === 500 || reason === 'InternalError') return 'internal'
  return code >= 500 ? 'unavailable' : 'unexpected'
}

function shortened(text: string): string {
  const line = oneLine(text)
  return line.length <= TEXT_LENGTH_MAX ? line : `${line.slice(0, TEXT_LENGTH_MAX - 3)}...`
}
