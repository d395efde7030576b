import type { ApiObject, WatchEvent } from '../../../../src/source/kube/wire/tables.ts'
import type { Reply, Semantics, ServerRequest, Twist } from '../../../support/apiserver/semantics.ts'

export function service(name: string, more: { readonly [field: string]: unknown } = {}): ApiObject {
  return {
    apiVersion: 'v1',
    kind: 'Service',
    metadata: { namespace: 'ns', name, ...(more.metadata ?? {}) },
    spec: { clusterIP: '10.96.0.1', ports: [{ port: 80 }], ...(more.spec ?? {}) },
  }
}

export interface Json {
  readonly code: number
  // biome-ignore lint/suspicious/noExplicitAny: what a server answered, read in many shapes.
  readonly body: any
  readonly headers: Readonly<Record<string, string>>
}

type Asked = Partial<ServerRequest> & { readonly twist?: Twist }

/** A request that ends. */
export function ask(semantics: Semantics, path: string, options: Asked = {}): Json {
  const reply = replyTo(semantics, path, options)
  if (reply.kind !== 'whole') throw new Error('a watch')
  return { code: reply.code, headers: reply.headers, body: JSON.parse(Buffer.from(reply.body).toString()) }
}

export interface Watched {
  readonly events: WatchEvent[]
  readonly types: () => readonly string[]
  readonly ended: () => boolean
}

export function watch(semantics: Semantics, path: string, options: Asked = {}): Watched {
  const reply = replyTo(semantics, path, options)
  if (reply.kind !== 'watch') throw new Error(`not a watch: ${Buffer.from(reply.body)}`)
  const events: WatchEvent[] = []
  let ended = false
  const event = (each: WatchEvent) => {
    events.push(JSON.parse(Buffer.from(reply.encode(each)).toString()))
  }
  const end = () => {
    ended = true
  }
  reply.start({ event, end })
  return { events, types: () => events.map(({ type }) => type), ended: () => ended }
}

function replyTo(semantics: Semantics, path: string, { twist, ...more }: Asked): Reply {
  return semantics.handle({ method: 'GET', path, headers: {}, body: '', ...more }, twist)
}

export function nameOf({ object }: WatchEvent): string {
  const { metadata } = object
  return typeof metadata === 'object' && metadata !== null && 'name' in metadata ? String(metadata.name) : ''
}
