import { oneLine } from '../../base/text.ts'
import { WireError } from '../../wire/wire-error.ts'
import { ApiError } from './api-client.ts'
import type { ApiStatus } from './wire/status.ts'

export type FailureKind =
  /** The resource version or the continue token is no longer known. */
  | 'expired'
  /** The resource version is not known yet. */
  | 'too-large'
  /** The server does not understand the parameters. */
  | 'invalid'
  | 'unauthorized'
  | 'forbidden'
  /** There is no such resource. */
  | 'absent'
  | 'throttled'
  | 'internal'
  /** Any other 5xx. */
  | 'unavailable'
  /** Any other status. */
  | 'unexpected'
  /** No whole answer. */
  | 'connection'
  /** An answer that cannot be read. */
  | 'broken'
  /** The server did not cause it. */
  | 'fault'

/** Why a request, or the stream that it opened, did not give what was asked for. */
export interface Failure {
  readonly kind: FailureKind
  /** One line. */
  readonly text: string
  /** What the server asks to wait, milliseconds, 0 to 300,000. */
  readonly retryAfterMs: number
}

/** A failure on its way up. */
export class FailureError extends Error {
  override readonly name = 'FailureError'
  readonly failure: Failure

  constructor(failure: Failure) {
    super(failure.text)
    this.failure = failure
  }
}

const RETRY_AFTER_MS_MAX = 300_000
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

export function failureOfError(error: unknown): Failure {
  if (error instanceof FailureError) return error.failure
  const text = shortened(error instanceof Error ? error.message : String(error))
  if (error instanceof ApiError) return { kind: 'connection', text, retryAfterMs: 0 }
  if (error instanceof WireError) return { kind: 'broken', text, retryAfterMs: 0 }
  return { kind: 'fault', text, retryAfterMs: 0 }
}

/** Servers before 1.19 name no cause. */
function isTooLarge(message: string, causes: readonly string[]): boolean {
  return causes.includes('ResourceVersionTooLarge') || message.includes('Too large resource version')
}

function kindOf(code: number, reason: string): FailureKind {
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
