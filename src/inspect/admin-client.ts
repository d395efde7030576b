import { request } from 'node:http'
import { systemClock } from '../base/clock.ts'
import { codeOf } from '../base/errors.ts'
import { formatIpPort, parseIp } from '../base/ip.ts'
import { fieldOf, listAt, textAt } from '../base/plain-data.ts'
import { isJson, type Json } from '../model/fields.ts'
import { type PodNames, podNames } from '../model/pod-names.ts'
import { namesIn, noted, type ServiceNames } from '../modes/common/service-names.ts'

/** Maximum time of a whole answer: what sends an octet now and then is not a daemon. */
const ANSWER_MS_MAX = 120_000
/** Pages of a few numbers or flags, which commands request first: a server that sends more is not the daemon. */
const SHORT_PAGES: ReadonlySet<string> = new Set(['/config', '/status'])

/**
 * Requests one page of this node's daemon, such as /state, until `signal` aborts. Undefined if no daemon listens there.
 * Rejects with an Error that names the socket on a malformed or failed answer, and on one that takes longer than
 * `answerMs`.
 */
export function askDaemon(
  socketPath: string,
  path: string,
  { signal, answerMs = ANSWER_MS_MAX }: { readonly signal?: AbortSignal; readonly answerMs?: number } = {},
): Promise<unknown> {
  // The state of 100,000 Services takes less than 512 MiB.
  const bytesMax = (SHORT_PAGES.has(path) ? 16 : 512) << 20
  return new Promise((resolve, reject) => {
    const fail = (cause: Error, what: string) => reject(socketError(cause, socketPath, what))
    const asked = request(
      // A kept connection may be closed by the daemon while the command works: each page has one of its own.
      { socketPath, path, agent: false, timeout: 5_000, ...(signal === undefined ? {} : { signal }) },
      response => {
        const chunks: Buffer[] = []
        let bytes = 0
        response.on('data', (chunk: Buffer) => {
          bytes += chunk.length
          if (bytes <= bytesMax) chunks.push(chunk)
          else asked.destroy(new Error(`${socketPath}: the answer to ${path} is too long`))
        })
        response.on('end', () => {
          const text = Buffer.concat(chunks).toString('utf8')
          if (response.statusCode !== 200)
            reject(new Error(`${socketPath}: ${path}: status ${response.statusCode}: ${text.slice(0, 200)}`))
          else
            try {
              resolve(JSON.parse(text))
            } catch (error) {
              reject(new Error(`${socketPath}: the answer to ${path} is not JSON`, { cause: error }))
            }
        })
        response.on('error', error => fail(error, `the answer to ${path} is not complete`))
      },
    )
    asked.on('timeout', () => asked.destroy(new Error(`${socketPath}: no answer within 5 s`)))
    const cancel = systemClock.after(answerMs, () =>
      asked.destroy(
        new Error(`${socketPath}: the answer to ${path} is not complete after ${answerMs / 1_000} s`),
      ),
    )
    asked.on('close', cancel)
    asked.on('error', error => {
      const isAbsent = 'code' in error && (error.code === 'ENOENT' || error.code === 'ECONNREFUSED')
      if (isAbsent) resolve(undefined)
      else fail(error, path)
    })
    asked.end()
  })
}

/** Makes an error that names the socket. One of another user gets the remedy: the daemon runs as root. */
export function socketError(cause: Error, socketPath: string, what: string): Error {
  if (codeOf(cause) === 'EACCES')
    return new Error(`${socketPath}: permission denied: run the command as root (sudo kprobe ...)`)
  return cause.message.includes(socketPath) ? cause : new Error(`${socketPath}: ${what}`, { cause })
}

/** Requests a page as askDaemon does. Throws if no daemon listens there. */
export async function demandAnswer(socketPath: string, path: string): Promise<unknown> {
  const answer = await askDaemon(socketPath, path)
  if (answer === undefined) throw new Error(`no daemon answers at ${socketPath}`)
  return answer
}

/** Throws if the answer of /config has no version. */
export function versionIn(config: unknown, socketPath: string): string {
  const version = textAt(config, 'version')
  if (version === '') throw new Error(`${socketPath}: no daemon of kprobe answers: /config has no version`)
  return version
}

/**
 * Requests the Pods of endpoints. Without a daemon, and with one of the last release, which has no such page, no address has
 * a name: names are worth no failure.
 */
export async function askPods(socketPath: string): Promise<PodNames> {
  const answer = await askDaemon(socketPath, '/pods').catch(() => undefined)
  const list: readonly unknown[] = Array.isArray(answer) ? answer : []
  return podNames(
    list.flatMap(each => {
      const [pod, ip] = [textAt(each, 'pod'), parseIp(textAt(each, 'ip'))]
      return pod === '' || ip === undefined ? [] : [{ pod, ip, ports: listAt(each, 'ports').map(Number) }]
    }),
  )
}

/** Requests all objects, for readSnapshotJson. Throws where the daemon has not read all of them yet. */
export async function askObjects(socketPath: string): Promise<Json> {
  const answer = await demandAnswer(socketPath, '/snapshot')
  if (isJson(answer) && answer.complete === true) return answer
  const source = fieldOf(answer, 'source')
  const missing = listAt(source, 'missing').join(', ')
  const trouble = textAt(source, 'trouble')
  const what = `${missing === '' ? '' : `: it lacks ${missing}`}${trouble === '' ? '' : ` (${trouble})`}`
  throw new Error(`the daemon at ${socketPath} has not read all objects yet${what}`)
}

/** Throws if the answer of /state has no list of Services. */
export function servicesIn(state: unknown, socketPath: string): readonly unknown[] {
  const services = fieldOf(state, 'services')
  if (!Array.isArray(services)) throw new Error(`${socketPath}: /state has no list of services`)
  return services
}

/**
 * Reads the names of IPVS objects from the daemon, again and again: kernel objects of IPVS carry none. The last ones stay
 * while the daemon has synced nothing since, and while it is away. Undefined without a socket. Throws if no daemon answers
 * at first, or on a malformed answer.
 */
export function serviceNamesReader(adminSocket: string): () => Promise<ServiceNames | undefined> {
  let last: ServiceNames | undefined
  let synced: unknown
  return async () => {
    if (adminSocket === '') return undefined
    try {
      const status = synced === undefined ? undefined : await askDaemon(adminSocket, '/status')
      if (synced !== undefined && fieldOf(status, 'synced') === synced) return last
      const state = await demandAnswer(adminSocket, '/state')
      last = serviceNames(servicesIn(state, adminSocket))
      synced = fieldOf(state, 'synced')
    } catch (error) {
      if (last === undefined) throw error
      // A daemon that comes back counts anew.
      synced = undefined
    }
    return last
  }
}

/** Reads the names of Services and skips entries of another shape. */
export function serviceNames(services: readonly unknown[]): ServiceNames {
  const found = noted()
  const { places, addresses, clusterIps } = found
  for (const service of services) {
    const name = textAt(service, 'service')
    for (const port of listAt(service, 'ports')) {
      const [display, protocol] = [textAt(port, 'name'), textAt(port, 'protocol')]
      const backends = [...listAt(port, 'cluster'), ...listAt(port, 'local')]
      for (const each of [...backends, ...listAt(port, 'frontends')])
        places.set(`${protocol} ${placeOf(each)}`, display)
      for (const frontend of listAt(port, 'frontends')) {
        const address = textAt(frontend, 'ip')
        addresses.set(address, name)
        if (fieldOf(frontend, 'kind') === 'ClusterIP') clusterIps.set(address, name)
      }
    }
  }
  return namesIn(found, true)
}

/** Formats a frontend; `:30080` for a node port. */
function placeOf(place: unknown): string {
  const [ip, port] = [parseIp(textAt(place, 'ip')), Number(fieldOf(place, 'port'))]
  return ip === undefined ? `:${port}` : formatIpPort(ip, port)
}
