import { open } from 'node:fs/promises'
import { ApiError } from '../api-client.ts'

/** Kubeconfigs, tokens and certificates are a few KiB; whatever is larger is something else. */
const BYTES_MAX = 1024 * 1024

/** The text of a file of at most 1 MiB. Throws ApiError 'credentials' that names `what` and the path. */
export async function readSmallFile(path: string, what: string): Promise<string> {
  try {
    const file = await open(path)
    try {
      return await readUpTo(file, path, what)
    } finally {
      await file.close()
    }
  } catch (error) {
    if (error instanceof ApiError) throw error
    throw new ApiError('credentials', `cannot read ${what} ${path}: ${codeOf(error)}`, { cause: error })
  }
}

async function readUpTo(file: Awaited<ReturnType<typeof open>>, path: string, what: string): Promise<string> {
  const buffer = new Uint8Array(BYTES_MAX + 1)
  let length = 0
  while (length < buffer.length) {
    const { bytesRead } = await file.read(buffer, length)
    if (bytesRead === 0) break
    length += bytesRead
  }
  if (length > BYTES_MAX) throw new ApiError('credentials', `${what} ${path} is larger than 1 MiB`)
  return new TextDecoder().decode(buffer.subarray(0, length))
}

/** The code of a system error, or its message. */
export function codeOf(error: unknown): string {
  if (!(error instanceof Error)) return String(error)
  return 'code' in error && typeof error.code === 'string' ? error.code : error.message
}
