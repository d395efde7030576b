import { connect, createServer, type Server } from 'node:net'

export type LockResult =
  | { readonly kind: 'held'; readonly release: () => Promise<void> }
  /** Somebody else has it; `holder` is what they say of themselves, empty when they do not answer. */
  | { readonly kind: 'busy'; readonly holder: string }

const ANSWER_MS = 500
const ANSWER_BYTES_MAX = 200

/**
 * A lock that exists once in a network namespace and ends with its process, however that dies: an abstract unix socket
 * (unix(7)). `holder` is told to those who come later.
 */
export async function takeLock(name: string, holder: string): Promise<LockResult> {
  const server = createServer(socket => {
    socket.on('error', () => socket.destroy())
    socket.end(holder)
  })
  const taken = await listen(server, `\0${name}`)
  if (!taken) return { kind: 'busy', holder: await askHolder(`\0${name}`) }
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

function askHolder(path: string): Promise<string> {
  return new Promise(resolve => {
    let answer = ''
    const socket = connect({ path })
    socket.setEncoding('utf8')
    socket.setTimeout(ANSWER_MS, () => socket.destroy())
    socket.on('data', (text: string) => {
      answer += text
      if (answer.length > ANSWER_BYTES_MAX) socket.destroy()
    })
    // A holder that is dying or stopped does not answer: it still has the lock.
    socket.on('error', () => socket.destroy())
    socket.on('close', () => resolve(answer.slice(0, ANSWER_BYTES_MAX)))
  })
}
