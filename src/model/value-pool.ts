import { append } from '../base/lists.ts'
import { isSame } from './fields.ts'
import type {
  EndpointConditions,
  EndpointHints,
  EndpointPort,
  EndpointTraits,
  ServicePortSpec,
} from './service.ts'

const ENTRIES_MAX = 65_536
/** Conditions and hints of the endpoints of one node. */
const TRAITS_MAX = 16
/** Longer lists are hardly ever repeated. */
const PORTS_MAX = 8

/**
 * One copy of each value that many objects repeat: names of nodes and zones, traits of endpoints, lists of ports. Bounded:
 * a part that is full starts over, which costs memory and nothing else.
 */
export class ValuePool {
  readonly #names = new Map<string, string>()
  /** By node name. */
  readonly #traits = new Map<string, EndpointTraits[]>()
  #traitsHeld = 0
  readonly #endpointPorts = new Map<string, readonly EndpointPort[]>()
  readonly #servicePorts = new Map<string, readonly ServicePortSpec[]>()

  /** Names that are held. */
  get size(): number {
    return this.#names.size
  }

  name(text: string): string {
    return text === '' ? text : shared(this.#names, text, text)
  }

  /** `conditions` are compared by identity. */
  traits(nodeName: string, conditions: EndpointConditions, hints: EndpointHints): EndpointTraits {
    const ofNode = this.#traits.get(nodeName)
    if (ofNode !== undefined)
      for (const known of ofNode)
        if (known.conditions === conditions && isSame(known.hints, hints)) return known
    const traits = { nodeName, conditions, hints }
    if (ofNode === undefined || ofNode.length < TRAITS_MAX) this.#addTraits(traits)
    return traits
  }

  #addTraits(traits: EndpointTraits): void {
    if (this.#traitsHeld >= ENTRIES_MAX) {
      this.#traits.clear()
      this.#traitsHeld = 0
    }
    append(this.#traits, traits.nodeName, traits)
    this.#traitsHeld++
  }

  endpointPorts(ports: readonly EndpointPort[]): readonly EndpointPort[] {
    return isShort(ports) ? shared(this.#endpointPorts, keyOf(ports), ports) : ports
  }

  /** Node ports are of one Service each. */
  servicePorts(ports: readonly ServicePortSpec[]): readonly ServicePortSpec[] {
    const isShared = isShort(ports) && ports.every(({ nodePort }) => nodePort === 0)
    return isShared ? shared(this.#servicePorts, keyOf(ports), ports) : ports
  }
}

function shared<V>(pool: Map<string, V>, key: string, value: V): V {
  const known = pool.get(key)
  if (known !== undefined) return known
  if (pool.size >= ENTRIES_MAX) pool.clear()
  pool.set(key, value)
  return value
}

function isShort({ length }: readonly EndpointPort[]): boolean {
  return length > 0 && length <= PORTS_MAX
}

function keyOf(ports: readonly EndpointPort[]): string {
  let key = ''
  for (const { name, protocol, port } of ports) key += `${name}/${protocol}/${port} `
  return key
}
