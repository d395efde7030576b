import type { ApiObject } from '../../src/source/kube/wire/tables.ts'
import { nodeOf, serviceCidrOf, serviceOf, sliceOf } from '../support/apiserver/generator.ts'
import type { Random } from '../support/apiserver/random.ts'
import { keyOf, metadataOf, type Store } from '../support/apiserver/store.ts'
import { NODE_NAME } from '../support/pipeline.ts'

const SHAPE = { namespaces: 2, ballast: false, nodes: 3 } as const
const SERVICES_MAX = 8
const SLICES_MAX = 3
const PODS = 40
const PROXY_NAME = 'service.kubernetes.io/service-proxy-name'

/**
 * What happens to the objects of a small cluster. Every state of an object says how many changes there were before it:
 * Services by their port, slices by their trigger time, so that whoever sees two of them knows which is the older one.
 */
export class Objects {
  readonly #store: Store
  readonly #random: Random
  #count = 0

  constructor(store: Store, random: Random) {
    this.#store = store
    this.#random = random
    store.create('nodes', nodeOf(NODE_NAME, 0))
    for (let index = 1; index < SHAPE.nodes; index++) store.create('nodes', nodeOf(`node-${index}`, index))
    store.create('servicecidrs', serviceCidrOf(['10.96.0.0/12']))
    for (let index = random.int(0, 4); index > 0; index--) this.#addService(index)
  }

  /** Gives what was done, in words. */
  change(): string {
    const random = this.#random
    const index = random.int(0, SERVICES_MAX - 1)
    const known = this.#serviceKey(index) !== undefined
    const dice = random.int(0, 99)
    if (dice < 45) return this.#putSlice(index, random.int(0, SLICES_MAX - 1))
    if (dice < 55) return this.#removeSlice()
    if (dice < 60) return this.#changeNode()
    if (!known) return this.#addService(index)
    if (dice < 70) return this.#removeService(index)
    if (dice < 78) return `${this.#removeService(index)}, ${this.#addService(index)}`
    if (dice < 84) return this.#setProxyName(index)
    return this.#putService(index)
  }

  #addService(index: number): string {
    const text = this.#putService(index)
    return this.#random.chance(0.8) ? `${text}, ${this.#putSlice(index, 0)}` : text
  }

  #putService(index: number): string {
    const random = this.#random
    const type = random.pick(['ClusterIP', 'ClusterIP', 'NodePort', 'LoadBalancer'] as const)
    const address = index + 20 * random.int(0, 2)
    const object = serviceOf(index, SHAPE, { port: this.#next(), type, address })
    const local = type !== 'ClusterIP' && random.chance(0.3) ? { externalTrafficPolicy: 'Local' } : {}
    const affine = random.chance(0.2) ? { sessionAffinity: 'ClientIP' } : {}
    const spec = { ...specOf(object), ...local, ...affine }
    this.#store.put('services', { ...object, spec })
    return `put ${keyOf(object)}`
  }

  #removeService(index: number): string {
    const key = this.#serviceKey(index)
    if (key === undefined) return 'nothing'
    this.#store.delete('services', key)
    return `delete ${key}`
  }

  #setProxyName(index: number): string {
    const key = this.#serviceKey(index)
    const object = key === undefined ? undefined : this.#store.get('services', key)
    if (object === undefined) return 'nothing'
    const { labels = {}, ...metadata } = metadataOf(object)
    const { [PROXY_NAME]: name, ...others } = labels
    const changed = name === undefined ? { ...labels, [PROXY_NAME]: 'other' } : others
    const [first, ...ports] = portsOf(object)
    const spec = { ...specOf(object), ports: [{ ...first, port: this.#next() }, ...ports] }
    this.#store.update('services', { ...object, metadata: { ...metadata, labels: changed }, spec })
    return `${name === undefined ? 'hide' : 'show'} ${key}`
  }

  #putSlice(index: number, number: number): string {
    const random = this.#random
    const pods = Array.from({ length: random.int(0, 6) }, () => random.int(0, PODS - 1))
    const unready = new Set(pods.filter(() => random.chance(0.15)))
    const triggered = new Date(this.#next() * 1_000).toISOString()
    const object = sliceOf(index, { ...SHAPE, number, pods: [...new Set(pods)], unready, triggered })
    this.#store.put('endpointslices', object)
    return `put ${keyOf(object)}`
  }

  #removeSlice(): string {
    const slices = this.#store.list('endpointslices')
    if (slices.length === 0) return 'nothing'
    const key = keyOf(this.#random.pick(slices))
    this.#store.delete('endpointslices', key)
    return `delete ${key}`
  }

  #changeNode(): string {
    const object = nodeOf(this.#random.pick([NODE_NAME, 'node-1']), this.#random.int(0, 5))
    this.#store.update('nodes', object)
    return `put ${keyOf(object)}`
  }

  #serviceKey(index: number): string | undefined {
    const key = keyOf(serviceOf(index, SHAPE))
    return this.#store.get('services', key) === undefined ? undefined : key
  }

  #next(): number {
    return 1 + (this.#count++ % 60_000)
  }
}

function specOf(object: ApiObject): ApiObject {
  return typeof object.spec === 'object' && object.spec !== null ? { ...object.spec } : {}
}

function portsOf(object: ApiObject): readonly object[] {
  const { ports } = specOf(object)
  return Array.isArray(ports) ? ports : []
}
