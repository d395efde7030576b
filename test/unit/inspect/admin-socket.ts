import { createServer } from 'node:http'
import { join } from 'node:path'
import { onTestFinished } from 'vitest'
import { temporaryFolder } from '../../support/folder.ts'

/** Answers at an admin socket until the test ends, or never where there is no answer. Gives the path. */
export async function adminSocket(
  answer: (page: string) => string | undefined,
  path = join(temporaryFolder(), 'admin.sock'),
): Promise<string> {
  const server = createServer(({ url = '' }, response) => {
    const body = answer(url)
    if (body !== undefined) response.end(body)
  })
  await new Promise<void>(listening => server.listen(path, listening))
  onTestFinished(() => {
    server.closeAllConnections()
    server.close()
  })
  return path
}
