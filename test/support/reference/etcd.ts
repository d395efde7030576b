import { request } from 'node:http'
import { text } from 'node:stream/consumers'

/** The present revision of the etcd at a unix socket, through its JSON gateway. */
export async function etcdRevision(socketPath: string): Promise<string> {
  const { header } = await ask(socketPath, '/v3/maintenance/status', {})
  const revision = isRecord(header) ? header.revision : undefined
  if (typeof revision !== 'string') throw new Error('etcd tells no revision')
  return revision
}

/** Forgets everything before the present revision: watches and lists that go on from there get a 410. Gives it. */
export async function compactEtcd(socketPath: string): Promise<string> {
  const revision = await etcdRevision(socketPath)
  await ask(socketPath, '/v3/kv/compaction', { revision, physical: true })
  return revision
}

async function ask(
  socketPath: string,
  path: string,
  body: object,
): Promise<Readonly<Record<string, unknown>>> {
  const words = await post(socketPath, path, JSON.stringify(body))
  const answer: unknown = JSON.parse(words)
  if (!isRecord(answer)) throw new Error(`etcd ${path}: ${words}`)
  return answer
}

function post(socketPath: string, path: string, body: string): Promise<string> {
  return new Promise((resolve, reject) => {
    const sent = request({ socketPath, path, method: 'POST' })
    sent.on('error', reject)
    sent.on('response', response => {
      text(response).then(words => {
        if (response.statusCode === 200) resolve(words)
        else reject(new Error(`etcd ${path}: ${response.statusCode} ${words}`))
      }, reject)
    })
    sent.end(body)
  })
}

function isRecord(value: unknown): value is Readonly<Record<string, unknown>> {
  return typeof value === 'object' && value !== null
}
