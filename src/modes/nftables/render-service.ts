import { trimmed } from '../../base/collections.ts'
import { type Octets, readU32host, u32host } from '../../base/octets.ts'
import type { Element, ElementGroup } from '../../kernel/nft/state.ts'
import type { Backend, Frontend, PortFrontends, ServiceFrontends } from '../../model/frontend.ts'
import { CHAIN_REJECT } from '../common/rules.ts'
import { commentOf, type FamilyLayout, portData, portKey } from '../common/tables.ts'
import { externalChain, externalLocalChain, firewallChain, pickChain } from './chains.ts'
import {
  CODE_DROP,
  CODE_REJECT,
  type CodeDraft,
  ENDPOINTS,
  ENDPOINTS_MAPS,
  type EndpointsMap,
  ID_MAX,
  type IdDraft,
  LOCAL_LIST,
  listOfPort,
  pairKey,
  readPairKey,
  STABLE,
  STABLE_LOCAL,
  STABLE_MAX,
} from './layout.ts'

interface ElementContext {
  readonly layout: FamilyLayout
  readonly ids: IdDraft
  readonly codes: CodeDraft
}

/** The kind of number that ran out. A Service that gets no number is refused. */
export interface OutOfNumbers {
  readonly reason: string
}

const NO_IDS_LEFT: OutOfNumbers = {
  reason: `too many service ports: all ${ID_MAX} numbers of the table are in use`,
}
const NO_CODES_LEFT: OutOfNumbers = {
  reason: 'too many combinations of endpoint counts: all 4080 codes of the table are in use',
}
const TOO_MANY_ENDPOINTS: OutOfNumbers = {
  reason: `too many endpoints of one port with session affinity: all ${STABLE_MAX} numbers are in use`,
}
const NONE: readonly never[] = []

interface Rendering {
  readonly port: PortFrontends
  /** The cluster list of the port. */
  readonly base: number
  readonly comment: string
  readonly before: ElementGroup | undefined
  readonly slots: SlotTable | undefined
}

/** Makes the elements of one table, Service by Service. The first render makes a hundred thousand of them or more. */
export class ElementDraft {
  readonly #context: ElementContext
  /** The result of u32host for each slot. */
  readonly #slotOctets: Octets[] = []
  /** The codes of the chains that pick one of so many endpoints of the cluster, without affinity. */
  readonly #pickCodes: (number | undefined)[] = []
  /** The elements of the current Service. A list that serves all Services would be old, and what it names survive with it. */
  #out: Element[] = []

  constructor(context: ElementContext) {
    this.#context = context
  }

  /** Makes all elements that serve one Service. Endpoints that are in `before` keep their slots. */
  make(service: ServiceFrontends, before: ElementGroup | undefined): ElementGroup | OutOfNumbers {
    const { model, addressLength } = this.#context.layout
    const { clusterIps, ports } = service
    this.#out = []
    for (let i = 0; i < clusterIps.length; i++) {
      const ip = clusterIps[i]
      if (ip?.length === addressLength)
        this.#add({ set: 'cluster-ips', key: ip, data: undefined, comment: '' })
    }
    for (let i = 0; i < ports.length; i++) {
      const port = ports[i]
      if (port?.family !== model || port.frontends.length === 0) continue
      const failure = this.#addPort(port, before)
      if (failure !== undefined) return failure
    }
    return trimmed(this.#out)
  }

  #add(element: Element): void {
    this.#out.push(element)
  }

  #addPort(port: PortFrontends, before: ElementGroup | undefined): OutOfNumbers | undefined {
    const id = this.#context.ids.take(port.key)
    if (id === undefined) return NO_IDS_LEFT
    const { affinityTimeoutS } = port
    const comment = commentOf(port)
    const rendering: Rendering = {
      port,
      base: listOfPort(id),
      comment,
      before,
      slots:
        before === undefined
          ? undefined
          : slotsOf(before, affinityTimeoutS === 0 ? ENDPOINTS[port.protocol] : 'slots'),
    }
    if (!this.#addFrontends(rendering)) return NO_CODES_LEFT
    const lists = listsOf(port)
    if (affinityTimeoutS > 0) {
      if (!this.#addAffine(rendering, lists)) return TOO_MANY_ENDPOINTS
    } else {
      if ((lists & CLUSTER) !== 0) this.#deal(rendering, port.cluster, 0)
      if ((lists & LOCAL) !== 0) this.#deal(rendering, port.local, LOCAL_LIST)
    }
    this.#addRanges(rendering)
    return undefined
  }

  #addFrontends({ port, base, comment }: Rendering): boolean {
    const { frontends, protocol } = port
    for (let i = 0; i < frontends.length; i++) {
      const frontend = frontends[i]
      if (frontend === undefined) break
      const code = this.#codeOf(frontend, port)
      if (code === undefined) return false
      const key = portKey(protocol, frontend.port)
      const data = u32host(base + code)
      if (frontend.ip === undefined) this.#add({ set: 'nodeports', key, data, comment })
      else this.#add({ set: 'frontends', key: frontend.ip + key, data, comment })
    }
    return true
  }

  #codeOf(frontend: Frontend, port: PortFrontends): number | undefined {
    const { route, sourceRanges } = frontend
    const { length } = port.cluster
    const isPlain = route.kind === 'internal' && route.over === 'cluster' && length > 0
    // Most frontends; their chains have few names, which are texts to put together and to look up.
    if (isPlain && sourceRanges === undefined && port.affinityTimeoutS === 0)
      return this.#pickCodes[length] ?? this.#pickCodeOf(length)
    const chain = targetOf(frontend, port)
    return typeof chain === 'number' ? chain : this.#context.codes.take(chain)
  }

  #pickCodeOf(length: number): number | undefined {
    const code = this.#context.codes.take(pickChain(false, length, 0))
    this.#pickCodes[length] = code
    return code
  }

  /** Adds a list without affinity, of which some endpoints may have slots already. */
  #deal(rendering: Rendering, backends: readonly Backend[], bit: number): void {
    const { port, base } = rendering
    const list = base + bit
    const slots = rendering.slots?.get(list)
    if (slots === undefined) this.#addEndpoints(backends, list, rendering)
    else {
      const values = assignSlots(backends.map(endpointData), slots)
      for (let slot = 0; slot < values.length; slot++)
        this.#add({
          set: ENDPOINTS[port.protocol],
          key: pairKey(list, slot),
          data: values[slot],
          comment: '',
        })
    }
  }

  /** Adds a list without affinity, slot by slot. */
  #addEndpoints(backends: readonly Backend[], list: number, rendering: Rendering): void {
    const out = this.#out
    const slotOctets = this.#slotOctets
    const prefix = u32host(list)
    const set = ENDPOINTS[rendering.port.protocol]
    let port = -1
    let portOctets = ''
    for (let slot = 0; slot < backends.length; slot++) {
      const backend = backends[slot]
      if (backend === undefined) break
      if (backend.port !== port) {
        port = backend.port
        portOctets = portData(port)
      }
      const key = prefix + (slotOctets[slot] ?? this.#octetsOf(slot))
      out.push({ set, key, data: backend.ip + portOctets, comment: '' })
    }
  }

  /** Callers pass slots in order, so that the list has no gaps. */
  #octetsOf(slot: number): Octets {
    const octets = u32host(slot)
    this.#slotOctets[slot] = octets
    return octets
  }

  /**
   * Adds the endpoints of a port with affinity. Both lists share one numbering, so that a client keeps its
   * endpoint on either list. Gives false when there are not enough numbers.
   */
  #addAffine({ port, base, before, slots }: Rendering, lists: number): boolean {
    const cluster = (lists & CLUSTER) === 0 ? NONE : port.cluster.map(endpointData)
    const local = (lists & LOCAL) === 0 ? NONE : port.local.map(endpointData)
    const ids = stableIds([...new Set([...cluster, ...local])].sort(), numbersOf(before ?? NONE, base))
    if (ids === undefined) return false
    for (const [bit, marker, values] of [
      [0, STABLE, cluster],
      [LOCAL_LIST, STABLE_LOCAL, local],
    ] as const) {
      const list = base + bit
      const numbers = values.map(value => base + (ids.get(value) ?? 0))
      for (let i = 0; i < values.length; i++)
        this.#add({
          set: ENDPOINTS[port.protocol],
          key: pairKey(numbers[i] ?? 0, marker),
          data: values[i],
          comment: '',
        })
      const dealt = assignSlots(numbers.map(u32host), slots?.get(list))
      for (let slot = 0; slot < dealt.length; slot++)
        this.#add({ set: 'slots', key: pairKey(list, slot), data: dealt[slot], comment: '' })
    }
    return true
  }

  #addRanges({ port, base }: Rendering): void {
    const { frontends } = port
    let keys: Set<Octets> | undefined
    for (let i = 0; i < frontends.length; i++) {
      const ranges = frontends[i]?.sourceRanges
      if (ranges === undefined) continue
      keys ??= new Set()
      for (const { ip, bits } of ranges) {
        if (ip.length === this.#context.layout.addressLength) keys.add(u32host(base + bits) + ip)
      }
    }
    if (keys === undefined) return
    for (const key of keys) this.#add({ set: 'ranges', key, data: undefined, comment: '' })
  }
}

/** Gives the numbers that the endpoints of one service port have, by address and port. */
function numbersOf(group: ElementGroup, base: number): ReadonlyMap<Octets, number> {
  const numbers = new Map<Octets, number>()
  for (const { set, key, data } of group) {
    if (!ENDPOINTS_MAPS.has(set) || typeof data !== 'string' || readPairKey(key).slot !== undefined) continue
    const number = readU32host(key) - base
    if (number >= 0 && number < STABLE_MAX) numbers.set(data, number)
  }
  return numbers
}

const CLUSTER = 1
const LOCAL = 2

/** Gives the lists of a port that its frontends use: CLUSTER, LOCAL or both. */
function listsOf({ frontends }: PortFrontends): number {
  let lists = 0
  for (let i = 0; i < frontends.length; i++) {
    const route = frontends[i]?.route
    if (route === undefined) break
    if (route.kind === 'external-cluster') lists |= CLUSTER
    else if (route.kind === 'external-local') lists |= CLUSTER | LOCAL
    else if (route.kind === 'internal') lists |= route.over === 'local' ? LOCAL : CLUSTER
  }
  return lists
}

/** Gives the chain that serves a frontend, or its code where the code is fixed. */
function targetOf(frontend: Frontend, port: PortFrontends): string | number {
  const target = unguardedTarget(frontend, port)
  if (frontend.sourceRanges === undefined || target === CODE_DROP) return target
  return firewallChain(target === CODE_REJECT ? CHAIN_REJECT : `${target}`)
}

function unguardedTarget({ route }: Frontend, port: PortFrontends): string | number {
  const { cluster, local, affinityTimeoutS } = port
  switch (route.kind) {
    case 'reject':
      return CODE_REJECT
    case 'drop':
      return CODE_DROP
    case 'internal': {
      const over = route.over === 'local' ? local : cluster
      if (over.length > 0) return pickChain(route.over === 'local', over.length, affinityTimeoutS)
      return route.over === 'local' ? CODE_DROP : CODE_REJECT
    }
    case 'external-cluster':
      return cluster.length === 0 ? CODE_REJECT : externalChain(cluster.length, affinityTimeoutS)
    case 'external-local':
      return externalLocalChain(cluster.length, local.length, affinityTimeoutS)
  }
}

function endpointData({ ip, port }: Backend): Octets {
  return ip + portData(port)
}

/** The values of a list, slot by slot. The list has gaps if another program changed the map. */
type Slots = (Octets | undefined)[]

/** Slots by list id. */
type SlotTable = ReadonlyMap<number, Slots>

/** Reads the slots from elements. Slot numbers above the number of elements are not ours: they would take memory. */
function slotsOf(group: ElementGroup, set: EndpointsMap | 'slots'): SlotTable {
  const tables = new Map<number, Slots>()
  for (const { set: of, key, data } of group) {
    if (of !== set || typeof data !== 'string') continue
    const { list, slot } = readPairKey(key)
    if (slot === undefined || slot >= group.length) continue
    const slots = tables.get(list)
    if (slots === undefined) tables.set(list, placed([], slot, data))
    else placed(slots, slot, data)
  }
  return tables
}

function placed(slots: Slots, slot: number, data: Octets): Slots {
  while (slots.length < slot) slots.push(undefined)
  slots[slot] = data
  return slots
}

/**
 * Assigns the values of `wanted`, which contains no value twice, to as many slots. Values keep their slots,
 * and new values fill the gaps. A list that changes by one endpoint changes one or two slots, whatever its
 * length.
 */
export function assignSlots(wanted: readonly Octets[], before: Slots | undefined): readonly Octets[] {
  if (before === undefined) return wanted
  const others: number[] = []
  const slotOf = new Map<Octets, number>()
  // Most of a long list stands where it stood, and needs no place in a Map.
  for (let slot = 0; slot < wanted.length; slot++) {
    const value = before[slot]
    if (value === wanted[slot]) continue
    others.push(slot)
    if (value !== undefined) slotOf.set(value, slot)
  }
  if (others.length === 0) return wanted
  const dealt = wanted.slice()
  for (const slot of others) dealt[slot] = GAP
  const waiting: Octets[] = []
  for (const at of others) {
    const value = wanted[at] ?? GAP
    const slot = slotOf.get(value)
    if (slot === undefined) waiting.push(value)
    else dealt[slot] = value
  }
  let next = 0
  for (const slot of others) if (dealt[slot] === GAP) dealt[slot] = waiting[next++] ?? GAP
  return dealt
}

/** No endpoint. */
const GAP: Octets = ''

/**
 * Gives each endpoint a number below STABLE_MAX. The number stays the same as long as the endpoint exists, so
 * that entries of `affinity` stay valid when other endpoints join or leave. Endpoints keep their number in
 * `before`. A new endpoint gets the FNV-1a hash of its address and port, or the next free number. The order
 * of `endpoints` must depend on its members alone. Gives undefined when there are too many.
 */
export function stableIds(
  endpoints: readonly Octets[],
  before: ReadonlyMap<Octets, number>,
): ReadonlyMap<Octets, number> | undefined {
  if (endpoints.length > STABLE_MAX) return undefined
  const ids = new Map<Octets, number>()
  const taken = new Set<number>()
  for (const endpoint of endpoints) {
    const id = before.get(endpoint)
    if (id === undefined || taken.has(id)) continue
    taken.add(id)
    ids.set(endpoint, id)
  }
  for (const endpoint of endpoints) {
    if (ids.has(endpoint)) continue
    let id = hash(endpoint) % STABLE_MAX
    while (taken.has(id)) id = (id + 1) % STABLE_MAX
    taken.add(id)
    ids.set(endpoint, id)
  }
  return ids
}

function hash(octets: Octets): number {
  let value = 0x811c9dc5
  for (let i = 0; i < octets.length; i++) value = Math.imul(value ^ octets.charCodeAt(i), 0x01000193)
  return value >>> 0
}
