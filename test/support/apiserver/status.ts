import type { ApiObject } from '../../../src/source/kube/wire/tables.ts'

/** A Status that ends a request. */
export class ApiFailure extends Error {
  readonly status: ApiObject
  readonly code: number
  readonly retryAfter: string | undefined

  constructor(code: number, status: ApiObject, retryAfter?: string) {
    super(String(status.message))
    this.name = 'ApiFailure'
    this.code = code
    this.status = status
    this.retryAfter = retryAfter
  }
}

interface FailureOptions {
  readonly code: number
  readonly reason: string
  readonly message: string
  readonly details?: ApiObject
  /** Token of `metadata.continue`, as an expired page has one. */
  readonly continueToken?: string
  readonly retryAfter?: string
}

export function statusObject({ code, reason, message, details, continueToken }: FailureOptions): ApiObject {
  return {
    kind: 'Status',
    apiVersion: 'v1',
    metadata: continueToken === undefined ? {} : { continue: continueToken },
    status: 'Failure',
    message,
    reason,
    ...(details === undefined ? {} : { details }),
    code,
  }
}

export function failure(options: FailureOptions): ApiFailure {
  return new ApiFailure(options.code, statusObject(options), options.retryAfter)
}

export function badRequest(message: string): ApiFailure {
  return failure({ code: 400, reason: 'BadRequest', message })
}

/** Options of a list or watch that do not go together: 422, with the field as cause. */
export function invalidOption(field: string, message: string): ApiFailure {
  return failure({
    code: 422,
    reason: 'Invalid',
    message: `ListOptions.meta.k8s.io "" is invalid: ${field}: Forbidden: ${message}`,
    details: {
      group: 'meta.k8s.io',
      kind: 'ListOptions',
      causes: [{ reason: 'FieldValueForbidden', message: `Forbidden: ${message}`, field }],
    },
  })
}

export function expired(message: string, continueToken?: string): ApiFailure {
  const token = continueToken === undefined ? {} : { continueToken }
  return failure({ code: 410, reason: 'Expired', message, ...token })
}

export function tooLarge(asked: bigint, current: bigint): ApiFailure {
  return failure({
    code: 504,
    reason: 'Timeout',
    message: `Timeout: Too large resource version: ${asked}, current: ${current}`,
    details: {
      causes: [{ reason: 'ResourceVersionTooLarge', message: 'Too large resource version' }],
      retryAfterSeconds: 1,
    },
    retryAfter: '1',
  })
}

export function notFound(plural: string, name: string): ApiFailure {
  return failure({
    code: 404,
    reason: 'NotFound',
    message: `${plural} "${name}" not found`,
    details: { name, kind: plural },
  })
}

export function conflict(plural: string, name: string, reason: 'AlreadyExists' | 'Conflict'): ApiFailure {
  const why = reason === 'AlreadyExists' ? 'already exists' : 'was changed since it was read'
  return failure({
    code: 409,
    reason,
    message: `${plural} "${name}" ${why}`,
    details: { name, kind: plural },
  })
}
