import { connect, createServer, type Server } from 'node:net'
import { oneLine } from './text.ts'

export type LockResult =
  | {
      readonly kind: 'held'
      readonly release: () => Promise<void>
      /**
       * Looks for a process that holds the lock as well and is to stay, and gives its answer; absent where none can hold
       * it. Throws what the kernel's list throws.
       */
      readonly rival?: () => Promise<string | undefined>
    }
  /** Another process has it; `holder` is its answer, empty when it does not answer. */
  | { readonly kind: 'busy'; readonly holder: string }

/** Takes a lock by its name; `holder` is for those who come later. */
export type TakeLock = (name: string, holder: string) => Promise<LockResult>

const ANSWER_MS = 500
const ANSWER_BYTES_MAX = 200

/**
 * An abstract unix socket (unix(7)): it exists once in a network namespace and ends with its process, however that dies.
 * Any process may take any name, and runtimes differ in whether they pad it with NULs to 108 octets (libuv before 1.47
 * does), so that it is no lock against other users or versions of Node.js. Later processes read `holder`.
 */
export async function takeLock(name: string, holder: string): Promise<LockResult> {
  const server = createServer(socket => {
    socket.on('error', () => socket.destroy())
    socket.end(holder)
  })
  const taken = await listen(server, `\0${name}`)
  if (!taken) return { kind: 'busy', holder: await askHolder(name) }
  // The lock alone keeps no process alive.
  server.unref()
  return { kind: 'held', release: () => new Promise(resolve => server.close(() => resolve())) }
}

/** False when the name is taken. */
function listen(server: Server, path: string): Promise<boolean> {
  return new Promise((resolve, reject) => {
    server.once('error', (error: NodeJS.ErrnoException) => {
      if (error.code === 'EADDRINUSE') resolve(false)
      else reject(error)
    })
    server.listen({ path }, () => resolve(true))
  })
}

/** Gives the answer of the process that listens at an abstract name; empty without one. */
export function askHolder(name: string): Promise<string> {
  return new Promise(resolve => {
    let answer = ''
    const socket = connect({ path: `\0${name}` })
    socket.setEncoding('utf8')
    socket.setTimeout(ANSWER_MS, () => socket.destroy())
    socket.on('data', (text: string) => {
      answer += text
      if (answer.length > ANSWER_BYTES_MAX) socket.destroy()
    })
    // A holder that is dying or stopped does not answer: it still has the lock.
    socket.on('error', () => socket.destroy())
    socket.on('close', () => resolve(oneLine(answer.slice(0, ANSWER_BYTES_MAX))))
  })
}
