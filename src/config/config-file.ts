import { open, stat } from 'node:fs/promises'
import { codeOf } from '../base/errors.ts'
import { PLACEHOLDER_REASON, placeholderIn } from '../base/text.ts'
import { type ConfigError, quote } from './flag.ts'

/**
 * Maximum size of a configuration file: a hundred times that of a whole configuration. It bounds the cost of a hostile
 * file.
 */
export const CONFIG_BYTES_MAX = 256 << 10

/** The reason why a configuration file cannot be read. */
export class ConfigFileError extends Error {
  override readonly name = 'ConfigFileError'
}

/** Reads the text of a configuration file, which may be a pipe. Throws ConfigFileError. */
export async function readConfigFile(path: string): Promise<string> {
  try {
    const file = await open(path, 'r')
    try {
      const chunks: Uint8Array[] = []
      let bytes = 0
      for await (const chunk of file.createReadStream({ end: CONFIG_BYTES_MAX, autoClose: false })) {
        chunks.push(chunk)
        bytes += chunk.length
      }
      if (bytes <= CONFIG_BYTES_MAX) return decode(Buffer.concat(chunks))
    } finally {
      await file.close()
    }
  } catch (error) {
    if (error instanceof ConfigFileError) throw error
    throw new ConfigFileError(`cannot be read (${codeOf(error)})`, { cause: error })
  }
  throw new ConfigFileError(`is larger than ${CONFIG_BYTES_MAX} bytes`)
}

/** Reads a file that is polled. Refuses a pipe, which has only one text: the next read would block forever. */
export async function readConfigFileAgain(path: string): Promise<string> {
  if (!(await isRegular(path))) throw new ConfigFileError('is not a regular file: changes cannot be followed')
  return await readConfigFile(path)
}

async function isRegular(path: string): Promise<boolean> {
  try {
    return (await stat(path)).isFile()
  } catch (error) {
    throw new ConfigFileError(`cannot be read (${codeOf(error)})`, { cause: error })
  }
}

function decode(bytes: Uint8Array): string {
  try {
    return new TextDecoder('utf-8', { fatal: true }).decode(bytes)
  } catch (error) {
    throw new ConfigFileError('is not UTF-8 text', { cause: error })
  }
}

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
