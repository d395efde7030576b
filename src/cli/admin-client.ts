import { request } from 'node:http'

/** What the daemon's admin socket says. */
type AdminAnswer =
  | { readonly kind: 'answer'; readonly value: unknown }
  /** No daemon listens there. */
  | { readonly kind: 'absent' }

/** Where the manifests put the socket, and where commands ask that are given none. */
export function usualSocket(proxyName: string | undefined): string {
  return `/run/kprobe/admin${proxyName === undefined ? '' : `-${proxyName}`}.sock`
}

/** Longest wait for the daemon to begin or go on answering. */
const TIMEOUT_MS = 5_000
/** More than the state of 100,000 Services. */
const ANSWER_BYTES_MAX = 512 * 1024 * 1024

/** Asks the daemon of this node for one of its pages, such as /state. Rejects when it answers badly. */
export function askDaemon(socketPath: string, path: string): Promise<AdminAnswer> {
  return new Promise((resolve, reject) => {
    const asked = request({ socketPath, path, timeout: TIMEOUT_MS }, response => {
      const chunks: Buffer[] = []
      let bytes = 0
      response.on('data', (chunk: Buffer) => {
        bytes += chunk.length
        if (bytes <= ANSWER_BYTES_MAX) chunks.push(chunk)
        else asked.destroy(new Error(`${socketPath}: the answer to ${path} is too long`))
      })
      response.on('end', () => {
        const text = Buffer.concat(chunks).toString('utf8')
        if (response.statusCode === 200) resolve({ kind: 'answer', value: JSON.parse(text) })
        else reject(new Error(`${socketPath}: ${path}: status ${response.statusCode}: ${text.slice(0, 200)}`))
      })
      response.on('error', reject)
    })
    asked.on('timeout', () =>
      asked.destroy(new Error(`${socketPath}: no answer within ${TIMEOUT_MS / 1_000} s`)),
    )
    asked.on('error', error => {
      const isAbsent = 'code' in error && (error.code === 'ENOENT' || error.code === 'ECONNREFUSED')
      if (isAbsent) resolve({ kind: 'absent' })
      else reject(error)
    })
    asked.end()
  })
}
