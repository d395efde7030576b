import { chmod, lstat, mkdtemp, rename, rm } from 'node:fs/promises'
import { createConnection, type Server } from 'node:net'

/**
 * Listens at a unix socket that only its owner can connect to (mode 0600). A socket file that an earlier process left is
 * replaced; one at which somebody answers, and whatever is no socket, is left alone, and that is the error. The result
 * removes the file, unless another process has put its own in that place.
 */
export async function listenAtUnixSocket(server: Server, path: string): Promise<() => Promise<void>> {
  await assertFree(path)
  // In a folder that nobody else can enter until the socket has its mode; then it takes its place in one step.
  const folder = await mkdtemp(`${path.slice(0, path.lastIndexOf('/') + 1)}.k`)
  try {
    await listening(server, `${folder}/s`)
    await chmod(`${folder}/s`, 0o600)
    const ours = await lstat(`${folder}/s`)
    await rename(`${folder}/s`, path)
    return () => removeOurs(path, ours)
  } catch (error) {
    server.close()
    throw error
  } finally {
    await rm(folder, { recursive: true, force: true })
  }
}

async function removeOurs(path: string, { dev, ino }: Awaited<ReturnType<typeof lstat>>): Promise<void> {
  const found = await lstat(path).catch(() => undefined)
  if (found?.dev === dev && found.ino === ino) await rm(path, { force: true })
}

function listening(server: Server, path: string): Promise<void> {
  return new Promise((resolve, reject) => {
    server.once('error', reject)
    server.listen({ path }, () => {
      server.off('error', reject)
      resolve()
    })
  })
}

/** Whatever is at the path may go only if it is a socket that nobody listens at. */
async function assertFree(path: string): Promise<void> {
  const found = await lstat(path).catch((error: NodeJS.ErrnoException) => {
    if (error.code === 'ENOENT') return undefined
    throw error
  })
  if (found === undefined) return
  if (!found.isSocket()) throw new Error('there is something that is no socket, and it is left alone')
  if (await isAnswered(path)) throw new Error('another process answers at this socket')
}

/** False for a socket file that nobody listens at, and for none; one whose queue is full (EAGAIN) is somebody's. */
function isAnswered(path: string): Promise<boolean> {
  return new Promise(resolve => {
    const probe = createConnection({ path })
    probe.once('connect', () => {
      probe.destroy()
      resolve(true)
    })
    probe.once('error', ({ code }: NodeJS.ErrnoException) =>
      resolve(code !== 'ECONNREFUSED' && code !== 'ENOENT'),
    )
  })
}
