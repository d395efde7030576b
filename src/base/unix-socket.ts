import { chmod, link, lstat, mkdir, mkdtemp, readdir, rename, rm, rmdir } from 'node:fs/promises'
import { createConnection, type Server } from 'node:net'
import { RUN_FOLDER } from './api-address.ts'
import { codeOf } from './errors.ts'

/** sun_path of unix(7), its NUL left aside. */
const PATH_OCTETS_MAX = 107
/** mkdtemp appends this many characters. */
const UNIQUE_LENGTH = 6

type FileId = Pick<Awaited<ReturnType<typeof lstat>>, 'dev' | 'ino'>

/**
 * Listens at a unix socket that only its owner can connect to (mode 0600). A socket file that an earlier process left is
 * replaced; one at which a process answers, and a file that is not a socket, stay, and that is the error. Of several
 * that begin at once one gets the place. The result removes the file, unless another process has put its own there.
 */
export async function listenAtUnixSocket(server: Server, path: string): Promise<() => Promise<void>> {
  checkLength(path)
  await deadSocketAt(path)
  // In a folder that other users cannot enter until the socket has its mode; then it takes its place in one step.
  const folder = await roomBeside(path).catch(error => failed(error, path))
  try {
    await listening(server, `${folder}/s`)
    await chmod(`${folder}/s`, 0o600)
    const ours = await lstat(`${folder}/s`)
    await takePlace(`${folder}/s`, path)
    return () => removeOurs(path, ours)
  } catch (error) {
    server.close()
    return failed(error, path)
  } finally {
    await rm(folder, { recursive: true, force: true })
  }
}

/** Makes kprobe's own folder if it is missing, as after a boot; another one may be a misspelled path. */
async function roomBeside(path: string): Promise<string> {
  if (folderOf(path) === RUN_FOLDER) await mkdir(RUN_FOLDER, 0o755).catch(unless('EEXIST'))
  return await mkdtemp(besideOf(path))
}

/** An error of the system has a temporary name, another one each time: the folder is as informative, and stable. */
function failed(error: unknown, path: string): never {
  const isOfSystem = error instanceof Error && 'syscall' in error
  throw isOfSystem
    ? new Error(`cannot make a socket in the folder ${folderOf(path)}: ${codeOf(error)}`)
    : error
}

/** Gives the start of the names of our own folders beside the path. */
function besideOf(path: string): string {
  return `${folderOf(path)}/.k`
}

function folderOf(path: string): string {
  const slash = path.lastIndexOf('/')
  return slash < 0 ? '.' : path.slice(0, slash) || '/'
}

/** Clients cannot connect to a longer path; and the socket is made in a folder beside its place. */
function checkLength(path: string): void {
  const beside = `${besideOf(path)}${'X'.repeat(UNIQUE_LENGTH)}/s`
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
  if (dead !== undefined) await removeDead(path, dead, made)
  if (!(await isLinked(made, path))) throw new Error('another process has just started to listen there')
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

/**
 * Removes a dead socket under a lock: without it, the file could be the socket that another process put there a moment ago.
 * The lock is a folder beside the path, so only those who may write there can hold it. Its one file is a second link of
 * `made`, at which the holder listens: it ends with its process.
 */
async function removeDead(path: string, dead: FileId, made: string): Promise<void> {
  const lock = `${besideOf(path)}${dead.ino.toString(36)}`
  const [folder, unique] = [`${made}.l`, made.slice(0, made.lastIndexOf('/')).slice(-UNIQUE_LENGTH)]
  await mkdir(folder, 0o700)
  await link(made, `${folder}/${unique}`)
  await removeDeadIn(lock)
  await takeFolder(folder, lock)
  try {
    const found = await deadSocketAt(path)
    if (isSame(found, dead)) await rm(path, { force: true })
  } finally {
    await rm(`${lock}/${unique}`, { force: true })
    // Another process may have replaced the empty folder already.
    await rmdir(lock).catch(unless('ENOTEMPTY', 'EEXIST', 'ENOENT'))
  }
}

/** rename(2) of a folder replaces none but an empty one. */
async function takeFolder(folder: string, lock: string): Promise<void> {
  try {
    await rename(folder, lock)
  } catch (error) {
    unless('ENOTEMPTY', 'EEXIST')(error)
    throw new Error('another process is about to listen there')
  }
}

/** Removes what a process left that died with the lock. No other process ever uses such a name, so no live one is removed. */
async function removeDeadIn(lock: string): Promise<void> {
  const names = await readdir(lock).catch(unless('ENOENT'))
  for (const name of names ?? []) {
    checkLength(`${lock}/${name}`)
    if ((await deadSocketAt(`${lock}/${name}`)) !== undefined) await rm(`${lock}/${name}`, { force: true })
  }
}

/** Throws an error again that has none of these codes. */
function unless(...codes: readonly string[]): (error: unknown) => undefined {
  return error => {
    if (codes.includes(codeOf(error))) return undefined
    throw error
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

/** Undefined when there is nothing; throws when there is anything but a socket without a listener. */
async function deadSocketAt(path: string): Promise<FileId | undefined> {
  const found = await lstat(path).catch((error: NodeJS.ErrnoException) => {
    if (error.code === 'ENOENT') return undefined
    throw error
  })
  if (found === undefined) return undefined
  if (!found.isSocket()) throw new Error('a file that is not a socket has this path; kprobe keeps it')
  if (await isAnswered(path)) throw new Error('another process answers at this socket')
  return found
}

/** False for a socket file without a listener, and for none; a socket whose queue is full (EAGAIN) has one. */
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
