import * as grpc from '@grpc/grpc-js'
import type { ApiState } from '../../../src/api/state.ts'
import { decodeOpItem, encodeLocalv1, type ReceivedItem } from './localv1.ts'
import { messageIn } from './states.ts'

/** Messages as the bytes that they are. */
const AS_IS = {
  requestSerialize: (bytes: Buffer) => bytes,
  requestDeserialize: (bytes: Buffer) => bytes,
  responseSerialize: (bytes: Buffer) => bytes,
  responseDeserialize: (bytes: Buffer) => bytes,
}

export function grpcClient(address: string, credentials = grpc.credentials.createInsecure()): grpc.Client {
  return new grpc.Client(address.replace(/^tcp:\/\//, ''), credentials, {
    'grpc.max_receive_message_length': 4 << 20,
    'grpc.use_local_subchannel_pool': 1,
    'grpc.initial_reconnect_backoff_ms': 100,
    // Not the address: Node.js 26 lets no client say an address as the name of a server, and grpc-js would.
    'grpc.ssl_target_name_override': 'localhost',
  })
}

type Duplex = grpc.ClientDuplexStream<Buffer, Buffer>

export function openStream(client: grpc.Client, path: string): Duplex {
  return client.makeBidiStreamRequest(path, AS_IS.requestSerialize, AS_IS.responseDeserialize)
}

export function callUnary(client: grpc.Client, path: string, request: Buffer): Promise<Buffer> {
  return new Promise((resolve, reject) => {
    client.makeUnaryRequest<Buffer, Buffer>(
      path,
      AS_IS.requestSerialize,
      AS_IS.responseDeserialize,
      request,
      (error, answer) => {
        if (error !== null) reject(error)
        else resolve(answer ?? Buffer.alloc(0))
      },
    )
  })
}

/** Resolves with the status that ended a call. */
export function statusOf(stream: Duplex): Promise<grpc.StatusObject> {
  stream.on('error', () => undefined)
  stream.resume()
  return new Promise(resolve => stream.once('status', resolve))
}

/** What a back end holds: by set and path, the bytes of its objects. Complains where KPNG's clients would. */
export class BackendStore {
  readonly services = new Map<string, string>()
  readonly endpoints = new Map<string, string>()
  readonly complaints: string[] = []
  resets = 0
  syncs = 0

  take(item: ReceivedItem): void {
    if (item.Set !== undefined) {
      const { Ref, Bytes } = item.Set
      this.#setOf(Ref.Set).set(Ref.Path, Buffer.from(Bytes ?? []).toString('latin1'))
      const service = Ref.Path.split('/').slice(0, 2).join('/')
      if (Ref.Set === 2 && !this.services.has(service)) this.complaints.push(`${Ref.Path} has no Service`)
    } else if (item.Delete !== undefined) {
      const { Path } = item.Delete
      if (!this.#setOf(item.Delete.Set).delete(Path))
        this.complaints.push(`${Path} was deleted, and not there`)
      if (item.Delete.Set === 1 && [...this.endpoints.keys()].some(path => path.startsWith(`${Path}/`)))
        this.complaints.push(`${Path} was deleted before its endpoints`)
    } else if (item.Op === 'Reset') {
      this.resets++
      this.services.clear()
      this.endpoints.clear()
    } else this.syncs++
  }

  content(): object {
    return { services: sorted(this.services), endpoints: sorted(this.endpoints) }
  }

  #setOf(set: number): Map<string, string> {
    if (set === 1) return this.services
    if (set === 2) return this.endpoints
    throw new Error(`there is no set ${set}`)
  }
}

export function contentOf(state: ApiState): object {
  const texts = (objects: ApiState['services']): Map<string, string> =>
    new Map(objects.values().map(object => [object.path, messageIn(object).toString('latin1')]))
  return { services: sorted(texts(state.services)), endpoints: sorted(texts(state.endpoints)) }
}

function sorted(objects: ReadonlyMap<string, string>): readonly (readonly [string, string])[] {
  return [...objects].sort(([a], [b]) => (a < b ? -1 : 1))
}

/** KPNG's client: asks, reads until Sync, asks again. */
export class WatchClient {
  readonly store: BackendStore
  readonly stream: Duplex
  readonly #waiting: ((syncs: number) => void)[] = []

  constructor(client: grpc.Client, store = new BackendStore()) {
    this.store = store
    this.stream = openStream(client, '/localv1.Sets/Watch')
    this.stream.on('error', () => undefined)
    this.stream.on('data', (bytes: Buffer) => {
      const before = store.syncs
      store.take(decodeOpItem(bytes))
      if (store.syncs > before) for (const resolve of this.#waiting.splice(0)) resolve(store.syncs)
    })
  }

  /** Resolves at the Sync that answers it. */
  ask(nodeName = ''): Promise<number> {
    const synced = new Promise<number>(resolve => this.#waiting.push(resolve))
    this.stream.write(encodeLocalv1('WatchReq', { NodeName: nodeName }))
    return synced
  }
}
