import { chmod, link, lstat, mkdtemp, rm } from 'node:fs/promises'
import { createConnection, type Server } from 'node:net'
import { takeLock } from './instance-lock.ts'

/** sun_path of unix(7), its NUL left aside. */
const PATH_OCTETS_MAX = 107

type FileId = Pick<Awaited<ReturnType<typeof lstat>>, 'dev' | 'ino'>

/**
 * Listens at a unix socket that only its owner can connect to (mode 0600). A socket file that an earlier process left is
 * replaced; one at which somebody answers, and whatever is no socket, is left alone, and that is the error. Of several
 * that begin at once one gets the place. The result removes the file, unless another process has put its own there.
 */
export async function listenAtUnixSocket(server: Server, path: string): Promise<() => Promise<void>> {
  checkLength(path)
  await deadSocketAt(path)
  // In a folder that nobody else can enter until the socket has its mode; then it takes its place in one step.
  const folder = await mkdtemp(`${path.slice(0, path.lastIndexOf('/') + 1)}.k`)
  try {
    await listening(server, `${folder}/s`)
    await chmod(`${folder}/s`, 0o600)
    const ours = await lstat(`${folder}/s`)
    await takePlace(`${folder}/s`, path)
    return () => removeOurs(path, ours)
  } catch (error) {
    server.close()
    throw error
  } finally {
    await rm(folder, { recursive: true, force: true })
  }
}

/** Nobody could connect to a longer path; and the socket is made in a folder beside its place. */
function checkLength(path: string): void {
  const beside = `${path.slice(0, path.lastIndexOf('/') + 1)}.kXXXXXX/s`
  const octets = Math.max(Buffer.byteLength(path), Buffer.byteLength(beside))
  if (octets > PATH_OCTETS_MAX)
    throw new Error(
      `the path is too long for a unix socket: ${octets} octets, a temporary name beside it included; at most ${PATH_OCTETS_MAX}`,
    )
}

/** link(2) never replaces a file: of two who find the place free, or made it free, one gets it. */
async function takePlace(made: string, path: string): Promise<void> {
  if (await isLinked(made, path)) return
  const dead = await deadSocketAt(path)
  if (dead !== undefined) await removeDead(path, dead)
  if (!(await isLinked(made, path))) throw new Error('another process has just begun to listen there')
}

function isLinked(made: string, path: string): Promise<boolean> {
  return link(made, path).then(
    () => true,
    (error: NodeJS.ErrnoException) => {
      if (error.code === 'EEXIST') return false
      throw error
    },
  )
}

/** Who looks and then removes does so alone; otherwise it could be the socket of another who did it a moment ago. */
async function removeDead(path: string, dead: FileId): Promise<void> {
  const lock = await takeLock(`kprobe-dead-socket-${dead.dev}-${dead.ino}`, '')
  if (lock.kind === 'busy') throw new Error('another process is about to listen there')
  try {
    const found = await deadSocketAt(path)
    if (isSame(found, dead)) await rm(path, { force: true })
  } finally {
    await lock.release()
  }
}

async function removeOurs(path: string, ours: FileId): Promise<void> {
  const found = await lstat(path).catch(() => undefined)
  if (isSame(found, ours)) await rm(path, { force: true })
}

function isSame(a: FileId | undefined, b: FileId): boolean {
  return a?.dev === b.dev && a.ino === b.ino
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

/** Undefined when there is nothing; throws when there is anything but a socket that nobody listens at. */
async function deadSocketAt(path: string): Promise<FileId | undefined> {
  const found = await lstat(path).catch((error: NodeJS.ErrnoException) => {
    if (error.code === 'ENOENT') return undefined
    throw error
  })
  if (found === undefined) return undefined
  if (!found.isSocket()) throw new Error('there is something that is no socket, and it is left alone')
  if (await isAnswered(path)) throw new Error('another process answers at this socket')
  return found
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
