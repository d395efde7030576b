import { open, stat } from 'node:fs/promises'

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
    throw new ConfigFileError(`cannot be read (${reasonOf(error)})`, { cause: error })
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
    throw new ConfigFileError(`cannot be read (${reasonOf(error)})`, { cause: error })
  }
}

function decode(bytes: Uint8Array): string {
  try {
    return new TextDecoder('utf-8', { fatal: true }).decode(bytes)
  } catch (error) {
    throw new ConfigFileError('is not UTF-8 text', { cause: error })
  }
}

function reasonOf(error: unknown): string {
  if (typeof error === 'object' && error !== null && 'code' in error) return String(error.code)
  return String(error)
}
