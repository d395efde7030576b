import { ApiError } from '../api-client.ts'
import { codeOf } from './cached-file.ts'

/** Error codes of OpenSSL's verification, as Node spells them, besides those that begin with ERR_TLS or ERR_SSL. */
const VERIFICATION =
  /^(CERT_|CRL_|UNABLE_TO_|DEPTH_ZERO_|SELF_SIGNED_|ERROR_IN_CERT_|INVALID_CA|INVALID_PURPOSE|PATH_LENGTH_|HOSTNAME_MISMATCH)/

/** The server has not looked at the request, which may be sent again (RFC 9113, 8.7). */
export class TurnedDown extends ApiError {}

/** Whether a request failed for nothing but that. */
export function isTurnedDown(error: unknown): boolean {
  return error instanceof ApiError && error.cause instanceof TurnedDown
}

/** What went wrong while a connection was made. */
export function dialFailure(error: unknown): ApiError {
  if (error instanceof ApiError) return error
  const inner = firstOf(error)
  const code = codeOf(inner)
  if (VERIFICATION.test(code) || code.startsWith('ERR_TLS'))
    return new ApiError('tls', `the server's certificate is refused: ${messageOf(inner)}`, { cause: error })
  if (code.startsWith('ERR_SSL') || code === 'EPROTO')
    return new ApiError('tls', `no TLS: ${messageOf(inner)}`, { cause: error })
  if (code === 'ENOTFOUND' || code === 'EAI_AGAIN')
    return new ApiError('unreachable', `its host name has no address: ${code}`, { cause: error })
  if (code === 'EMFILE' || code === 'ENFILE')
    return new ApiError('unreachable', `too many open files: ${code}`, { cause: error })
  return new ApiError('unreachable', `cannot connect: ${code}`, { cause: error })
}

/** What went wrong over a connection that had been made. */
export function exchangeFailure(error: unknown): ApiError {
  if (error instanceof ApiError) return error
  const code = codeOf(error)
  if (code.startsWith('HPE_')) return new ApiError('protocol', `not HTTP/1.1: ${code}`, { cause: error })
  if (code === 'ERR_HTTP2_ERROR')
    return new ApiError('protocol', `not HTTP/2: ${messageOf(error)}`, { cause: error })
  if (code.startsWith('ERR_SSL'))
    return new ApiError('tls', `the server ended TLS: ${messageOf(error)}`, { cause: error })
  return new ApiError('lost', `the connection ended before the response did: ${codeOrMessage(error)}`, {
    cause: error,
  })
}

/** A name with several addresses fails once for each. */
function firstOf(error: unknown): unknown {
  return error instanceof AggregateError ? (error.errors.at(0) ?? error) : error
}

function codeOrMessage(error: unknown): string {
  const code = codeOf(error)
  return code === 'ERR_HTTP2_STREAM_ERROR' || code === 'ERR_HTTP2_SESSION_ERROR' ? messageOf(error) : code
}

/** One line, without OpenSSL's source positions. */
function messageOf(error: unknown): string {
  const text = error instanceof Error ? error.message : String(error)
  const reason = /:error:[0-9A-F]*:[^:]*:[^:]*:([^:]+):/i.exec(text)?.[1]
  return (reason ?? text.split('\n')[0] ?? text).trim()
}
