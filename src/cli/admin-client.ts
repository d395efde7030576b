import { request } from 'node:http'

/** Answer of the daemon's admin socket. */
type AdminAnswer =
  | { readonly kind: 'answer'; readonly value: unknown }
  /** No daemon listens there. */
  | { readonly kind: 'absent' }

/** Gives the socket path of the manifests, which is the default of the commands. */
export function usualSocket(proxyName: string | undefined): string {
  return `/run/kprobe/admin${proxyName === undefined ? '' : `-${proxyName}`}.sock`
}

/** Maximum time without data from the daemon. */
const TIMEOUT_MS = 5_000
/** Exceeds the state of 100,000 Services. */
const ANSWER_BYTES_MAX = 512 * 1024 * 1024

/** Requests one page of this node's daemon, such as /state. Rejects on a malformed or failed answer. */
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
