/** A failure that is no bug of ours, with its causes, on one line. */
export function failureText(error: unknown): string {
  const hint = privilegeHint(error)
  const text = errorText(error)
  return hint === undefined ? text : `${text}; ${hint}`
}

/** The message of an error with those of its causes, each once. */
export function errorText(error: unknown): string {
  const texts: string[] = []
  for (let at = error; at instanceof Error && texts.length < 5; at = at.cause)
    if (!texts.some(text => saysCause(text, at))) texts.push(at.message)
  return texts.length === 0 ? String(error) : texts.join(': ')
}

/** A text that names the code of a system error, with its path or address, is specific enough. */
function saysCause(text: string, cause: SystemError): boolean {
  if (text.includes(cause.message)) return true
  const { syscall, code, path, address } = cause
  return (
    syscall !== undefined && [code, path, address].every(part => part === undefined || text.includes(part))
  )
}

type SystemError = NodeJS.ErrnoException & { readonly address?: string }

/** Gives the code of a system error, such as ENOENT; the message of any other. */
export function codeOf(error: unknown): string {
  if (!(error instanceof Error)) return String(error)
  return 'code' in error && typeof error.code === 'string' ? error.code : error.message
}

export function errorOf(thrown: unknown): Error {
  return thrown instanceof Error ? thrown : new Error(String(thrown))
}

/** Gives the remedy for a failure with EPERM among its causes; undefined for other failures. */
export function privilegeHint(error: unknown): string | undefined {
  for (let at = error, depth = 0; at instanceof Error && depth < 10; at = at.cause, depth++)
    if ('code' in at && at.code === 'EPERM')
      return 'this needs CAP_NET_ADMIN: run as root, or try it in a network namespace of your own (unshare -Urn)'
  return undefined
}

/** A broken invariant of our own: never caught to be ignored. */
class AssertionError extends Error {
  override readonly name = 'AssertionError'
}

export function assert(condition: boolean, message: string): asserts condition {
  if (!condition) throw new AssertionError(message)
}

/** Ends a switch over a discriminated union: reached only if a kind was forgotten. */
export function unreachable(value: never): never {
  throw new AssertionError(`unreachable: ${JSON.stringify(value)}`)
}

/** Bytes that are not what they are to be; the stream they came from cannot be used any further. */
export class WireError extends Error {
  override readonly name = 'WireError'
}
