import { setImmediate as turn } from 'node:timers/promises'
import { systemClock } from '../../src/base/clock.ts'
import { Intake } from '../../src/daemon/intake.ts'
import type { ApiClient, ApiRequest } from '../../src/source/kube/api-client.ts'
import { KubeSource } from '../../src/source/kube/kube-source.ts'
import type { ApiObject } from '../../src/source/kube/wire/tables.ts'
import { replacements } from '../support/apiserver/churn.ts'
import { type ClusterShape, clusterOf, type Placed } from '../support/apiserver/generator.ts'
import { ProtobufEncoder } from '../support/apiserver/protobuf-encoder.ts'
import { createRandom } from '../support/apiserver/random.ts'

/** What one change costs from its bytes to the Snapshot that has it, microseconds of a processor. */
export interface EventCost {
  readonly aloneUs: number
  readonly inBurstsUs: number
  readonly bytes: number
}

const WARM_UP = 2_000
const EVENTS = 10_000
const BURST = 100
const MEDIA = 'application/vnd.kubernetes.protobuf'

/** No sockets and no server: bodies are bytes that were made before. */
export async function measureEvents(shape: ClusterShape): Promise<EventCost> {
  const script = new Script(shape)
  const frames = script.changes(WARM_UP + 2 * EVENTS)
  let snapshots = 0
  const intake = new Intake({
    handlers: { refusals: () => undefined, problem: () => undefined },
  })
  intake.deliverTo({ offer: () => snapshots++ })
  const source = new KubeSource({
    client: script.client,
    clock: systemClock,
    random: Math.random,
    nodeName: 'node-0',
    serviceProxyName: undefined,
    accept: MEDIA,
  })
  await intake.follow(source)
  while (snapshots === 0) await turn()
  const tell = async (from: number, count: number, burst: number): Promise<number> => {
    const before = process.cpuUsage()
    for (let at = from; at < from + count; at += burst) {
      const seen = snapshots
      script.push(Buffer.concat(frames.slice(at, Math.min(at + burst, from + count))))
      while (snapshots === seen) await turn()
    }
    const { user, system } = process.cpuUsage(before)
    return (user + system) / count
  }
  await tell(0, WARM_UP, 1)
  const aloneUs = await tell(WARM_UP, EVENTS, 1)
  const inBurstsUs = await tell(WARM_UP + EVENTS, EVENTS, BURST)
  script.end()
  await source.stop()
  return { aloneUs, inBurstsUs, bytes: frames.reduce((sum, { length }) => sum + length, 0) / frames.length }
}

/** A server that streams its lists, and then what is pushed, to whoever watches the slices. */
class Script {
  readonly client: ApiClient
  readonly #encoder = new ProtobufEncoder()
  readonly #shape: ClusterShape
  readonly #objects: readonly Placed[]
  readonly #pushed: Uint8Array[] = []
  readonly #uids = new Map<string, string>()
  #wake: () => void = () => undefined
  #ended = false
  #version = 0

  constructor(shape: ClusterShape) {
    this.#shape = shape
    this.#objects = [...clusterOf({ ...shape, nodes: 1 })].map(placed => this.#stored(placed))
    this.client = {
      server: 'https://script',
      send: request =>
        Promise.resolve({ status: 200, contentType: MEDIA, retryAfterMs: 0, body: this.#body(request) }),
      close: () => Promise.resolve(),
    }
  }

  changes(count: number): readonly Uint8Array[] {
    const changes = replacements({ shape: this.#shape, random: createRandom(1) })
    return Array.from({ length: count }, () => {
      const next = changes.next()
      if (next.done === true) throw new Error('they never end')
      return this.#encoder.event('MODIFIED', this.#stored(next.value).object)
    })
  }

  push(bytes: Uint8Array): void {
    this.#pushed.push(bytes)
    this.#wake()
  }

  end(): void {
    this.#ended = true
    this.#wake()
  }

  async *#body({ path }: ApiRequest): AsyncGenerator<Uint8Array> {
    const plural = /\/(\w+)\?/.exec(path)?.[1] ?? ''
    for (const { resource, object } of this.#objects)
      if (resource === plural) yield this.#encoder.event('ADDED', object)
    yield this.#endOfList(plural)
    while (!this.#ended) {
      const next = plural === 'endpointslices' ? this.#pushed.shift() : undefined
      if (next !== undefined) yield next
      else if (plural !== 'endpointslices') await this.#over()
      else
        await new Promise<void>(resolve => {
          this.#wake = resolve
        })
    }
  }

  async #over(): Promise<void> {
    while (!this.#ended) await new Promise(resolve => setTimeout(resolve, 50))
  }

  #endOfList(plural: string): Uint8Array {
    const example = this.#objects.find(({ resource }) => resource === plural)?.object
    return this.#encoder.event('BOOKMARK', {
      kind: example?.kind,
      apiVersion: example?.apiVersion,
      metadata: {
        resourceVersion: String(this.#version),
        annotations: { 'k8s.io/initial-events-end': 'true' },
      },
    })
  }

  #stored({ resource, object }: Placed): Placed {
    const metadata = { name: '', namespace: '', ...Object(object.metadata) }
    const key = `${resource} ${metadata.namespace}/${metadata.name}`
    const uid = this.#uids.get(key) ?? `00000000-0000-4000-8000-${String(this.#uids.size).padStart(12, '0')}`
    this.#uids.set(key, uid)
    const stored: ApiObject = {
      ...object,
      metadata: { ...metadata, uid, resourceVersion: String(++this.#version) },
    }
    return { resource, object: stored }
  }
}
