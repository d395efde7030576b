import { open, readFile, rm, stat } from 'node:fs/promises'

/**
 * Writes a text file. When that fails, as on a full disk, what a regular file held before is put back, and a file that
 * was not there is removed. Devices and pipes are written to as they are. Throws what the file system throws.
 */
export async function writeWholeFile(path: string, text: string): Promise<void> {
  const found = await stat(path).catch(() => undefined)
  const before = found?.isFile() === true ? await readFile(path).catch(() => undefined) : undefined
  // Without truncation first: the file keeps its blocks, into which the old text fits again.
  const file = await open(path, before === undefined ? 'w' : 'r+', 0o644)
  try {
    const bytes = Buffer.from(text)
    await file.writeFile(bytes)
    if (before !== undefined) await file.truncate(bytes.length)
  } catch (error) {
    if (found === undefined) await rm(path, { force: true })
    if (before !== undefined) {
      await writeAt(file, before)
      await file.truncate(before.length)
    }
    throw error
  } finally {
    await file.close()
  }
}

async function writeAt(file: Awaited<ReturnType<typeof open>>, bytes: Buffer): Promise<void> {
  for (let at = 0; at < bytes.length; )
    at += (await file.write(bytes, at, bytes.length - at, at)).bytesWritten
}
