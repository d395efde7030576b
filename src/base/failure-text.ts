import { privilegeHint } from './privilege.ts'

/** A failure that is no bug of ours, with its causes, on one line. */
export function failureText(error: unknown): string {
  const hint = privilegeHint(error)
  const text = errorText(error)
  return hint === undefined ? text : `${text}; ${hint}`
}

/** The message of an error with those of its causes, each said once. */
export function errorText(error: unknown): string {
  const texts: string[] = []
  for (let at = error; at instanceof Error && texts.length < 5; at = at.cause)
    if (!texts.some(text => saysCause(text, at))) texts.push(at.message)
  return texts.length === 0 ? String(error) : texts.join(': ')
}

/** A text that names the code of a system error, with its path or address, says enough of it. */
function saysCause(text: string, cause: SystemError): boolean {
  if (text.includes(cause.message)) return true
  const { syscall, code, path, address } = cause
  return (
    syscall !== undefined && [code, path, address].every(part => part === undefined || text.includes(part))
  )
}

type SystemError = NodeJS.ErrnoException & { readonly address?: string }

/** What was thrown, which may be anything, as an Error. */
export function errorOf(thrown: unknown): Error {
  return thrown instanceof Error ? thrown : new Error(String(thrown))
}
