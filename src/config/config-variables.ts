import { PLACEHOLDER_REASON, placeholderIn } from '../base/text.ts'
import type { ConfigError } from './flag.ts'
import { quote } from './flag-reader.ts'

export type Environment = Readonly<Record<string, string | undefined>>

interface Expanded {
  readonly text: string
  readonly errors: readonly ConfigError[]
}

/**
 * Replaces `$(NAME)` in a configuration file by the environment variable of that name, so that nodes can share one
 * ConfigMap. Comment lines stay as they are. An unset variable is an error, unlike in the arguments of a container. A
 * remaining placeholder is an error, too.
 */
export function expandVariables({ path, text }: { path: string; text: string }, env: Environment): Expanded {
  const errors: ConfigError[] = []
  const fail = (line: number, message: string) => errors.push({ path: `${path}:${line + 1}`, message })
  const lines = text.split('\n').map((line, at) => {
    if (line.trimStart().startsWith('#')) return line
    const expanded = line.replace(/\$\((\w+)\)/g, (whole, name: string) => {
      const value = env[name]
      if (value !== undefined && !/[\r\n]/.test(value)) return value
      const why = value === undefined ? 'is not set' : 'has more than one line'
      fail(at, `${whole}: the environment variable ${name} ${why}`)
      return ''
    })
    const left = placeholderIn(expanded)
    if (left !== undefined) fail(at, `${quote(line.trim())}: ${left} ${PLACEHOLDER_REASON}`)
    return expanded
  })
  return { text: lines.join('\n'), errors }
}
