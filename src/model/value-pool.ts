import { append } from '../base/lists.ts'
import { isSame } from './fields.ts'
import type {
  EndpointConditions,
  EndpointHints,
  EndpointPort,
  EndpointTraits,
  ServicePortSpec,
} from './service.ts'

/** What one part of a pool may hold: entries, and their text. Long values take the room of several short ones. */
const ROOM = 65_536
/** Of the lists of ports, which are larger, and of which a cluster has fewer. */
const PORTS_ROOM = 16_384
/** Text that takes the room of an entry. */
const ENTRY_TEXT = 64
/** A hint, beside its name. */
const HINT_TEXT = 32
/** What takes more room is hardly ever repeated. */
const ENTRY_ROOM_MAX = 64
/** Conditions and hints of the endpoints of one node. */
const TRAITS_MAX = 16
/** Longer lists are hardly ever repeated. */
const PORTS_MAX = 8

/**
 * One copy of each value that many objects repeat: names of nodes and zones, traits of endpoints, lists of ports. Bounded
 * by what the values hold, because they stay when the objects that brought them are gone: a part that is full starts over,
 * which costs memory and nothing else.
 */
export class ValuePool {
  readonly #names = new Part<string>(ROOM)
  /** By node name. */
  readonly #traits = new Part<EndpointTraits[]>(ROOM)
  readonly #endpointPorts = new Part<readonly EndpointPort[]>(PORTS_ROOM)
  readonly #servicePorts = new Part<readonly ServicePortSpec[]>(PORTS_ROOM)

  /** Names that are held. */
  get size(): number {
    return this.#names.values.size
  }

  name(text: string): string {
    return text === '' ? text : shared(this.#names, text, text)
  }

  /** `conditions` are compared by identity. */
  traits(nodeName: string, conditions: EndpointConditions, hints: EndpointHints): EndpointTraits {
    const ofNode = this.#traits.values.get(nodeName)
    if (ofNode !== undefined)
      for (const known of ofNode)
        if (known.conditions === conditions && isSame(known.hints, hints)) return known
    const traits = { nodeName, conditions, hints }
    if (ofNode === undefined || ofNode.length < TRAITS_MAX) this.#addTraits(traits)
    return traits
  }

  #addTraits(traits: EndpointTraits): void {
    if (this.#traits.makesRoom(textOf(traits))) append(this.#traits.values, traits.nodeName, traits)
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

class Part<V> {
  readonly values = new Map<string, V>()
  readonly #room: number
  #held = 0

  constructor(room: number) {
    this.#room = room
  }

  /** Counts an entry with so much text, for which the others may have to go; false for one that is too long. */
  makesRoom(text: number): boolean {
    const needed = 1 + Math.floor(text / ENTRY_TEXT)
    if (needed > ENTRY_ROOM_MAX) return false
    if (this.#held + needed > this.#room) {
      this.values.clear()
      this.#held = 0
    }
    this.#held += needed
    return true
  }
}

function shared<V>(part: Part<V>, key: string, value: V): V {
  const known = part.values.get(key)
  if (known !== undefined) return known
  if (part.makesRoom(key.length)) part.values.set(key, value)
  return value
}

function textOf({ nodeName, hints: { forZones, forNodes } }: EndpointTraits): number {
  let length = nodeName.length
  for (const name of forZones) length += HINT_TEXT + name.length
  for (const name of forNodes) length += HINT_TEXT + name.length
  return length
}

function isShort({ length }: readonly EndpointPort[]): boolean {
  return length > 0 && length <= PORTS_MAX
}

function keyOf(ports: readonly EndpointPort[]): string {
  let key = ''
  for (const { name, protocol, port } of ports) key += `${name}/${protocol}/${port} `
  return key
}
