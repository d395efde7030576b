import { trimmed } from '../../base/collections.ts'
import { type Octets, readU32host, u32host } from '../../base/octets.ts'
import type { Element, ElementGroup } from '../../kernel/nft/state.ts'
import { needsOf } from '../../model/endpoint-choice.ts'
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
  type SetName,
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

/** Makes all elements of one table that serve one Service. Endpoints that are in `before` keep their slots. */
export function serviceElements(
  context: ElementContext,
  { clusterIps, ports }: ServiceFrontends,
  before: ElementGroup = [],
): ElementGroup | OutOfNumbers {
  const { model, addressLength } = context.layout
  const ips = clusterIps.filter(ip => ip.length === addressLength)
  const parts: (readonly Element[])[] = [ips.map(key => elementOf('cluster-ips', key))]
  for (const port of ports) {
    if (port.family !== model || port.frontends.length === 0) continue
    const made = portElements(context, port, before)
    if ('reason' in made) return made
    parts.push(made)
  }
  return trimmed(parts.flat())
}

function elementOf(set: SetName, key: Octets, data?: Octets, comment = ''): Element {
  return { set, key, data, comment }
}

function portElements(
  context: ElementContext,
  port: PortFrontends,
  before: ElementGroup,
): readonly Element[] | OutOfNumbers {
  const id = context.ids.take(port.key)
  if (id === undefined) return NO_IDS_LEFT
  const base = listOfPort(id)
  const frontends = frontendElements(context, port, base)
  if (frontends === undefined) return NO_CODES_LEFT
  const endpoints = port.affinityTimeoutS > 0 ? affineElements(port, base, before) : dealt(port, base, before)
  if (endpoints === undefined) return TOO_MANY_ENDPOINTS
  return [frontends, endpoints, rangeElements(context.layout, port, base)].flat()
}

/** Gives undefined when there are not enough codes. */
function frontendElements(
  { codes }: ElementContext,
  port: PortFrontends,
  base: number,
): readonly Element[] | undefined {
  const elements: Element[] = []
  const comment = commentOf(port)
  for (const frontend of port.frontends) {
    const chain = targetOf(frontend, port)
    const code = typeof chain === 'number' ? chain : codes.take(chain)
    if (code === undefined) return undefined
    const key = portKey(port.protocol, frontend.port)
    const data = u32host(base + code)
    elements.push(
      frontend.ip === undefined
        ? elementOf('nodeports', key, data, comment)
        : elementOf('frontends', frontend.ip + key, data, comment),
    )
  }
  return elements
}

interface EndpointList {
  readonly list: number
  /** The second half of the keys of endpoints with numbers of their own. */
  readonly marker: number
  readonly endpoints: readonly Octets[]
}

/** Gives the lists of a port that its frontends use. */
function listsOf({ frontends, cluster, local }: PortFrontends, base: number): readonly EndpointList[] {
  const needs = needsOf(frontends)
  return [
    { list: base, marker: STABLE, endpoints: needs.cluster ? cluster.map(endpointData) : [] },
    { list: base + LOCAL_LIST, marker: STABLE_LOCAL, endpoints: needs.local ? local.map(endpointData) : [] },
  ]
}

/** Makes the endpoints of a port without affinity, slot by slot. */
function dealt(port: PortFrontends, base: number, before: ElementGroup): readonly Element[] {
  const set = ENDPOINTS[port.protocol]
  const slots = slotsOf(before, set)
  return listsOf(port, base).flatMap(({ list, endpoints }) =>
    assignSlots(endpoints, slots.get(list)).map((data, slot) => elementOf(set, pairKey(list, slot), data)),
  )
}

/**
 * Makes the endpoints of a port with affinity. Both lists share one numbering, so that a client keeps its
 * endpoint on either list. Gives undefined when there are not enough numbers.
 */
function affineElements(
  port: PortFrontends,
  base: number,
  before: ElementGroup,
): readonly Element[] | undefined {
  const lists = listsOf(port, base)
  const all = new Set(lists.flatMap(({ endpoints }) => endpoints))
  const ids = stableIds([...all].sort(), numbersOf(before, base))
  if (ids === undefined) return undefined
  const slots = slotsOf(before, 'slots')
  return lists.flatMap(({ list, marker, endpoints }) => {
    const numbers = endpoints.map(data => base + (ids.get(data) ?? 0))
    return [
      ...endpoints.map((data, at) =>
        elementOf(ENDPOINTS[port.protocol], pairKey(numbers[at] ?? 0, marker), data),
      ),
      ...assignSlots(numbers.map(u32host), slots.get(list)).map((data, slot) =>
        elementOf('slots', pairKey(list, slot), data),
      ),
    ]
  })
}

function rangeElements(
  { addressLength }: FamilyLayout,
  { frontends }: PortFrontends,
  base: number,
): readonly Element[] {
  const ranges = frontends.flatMap(({ sourceRanges = [] }) => sourceRanges)
  const own = ranges.filter(({ ip }) => ip.length === addressLength)
  const keys = new Set(own.map(({ ip, bits }) => u32host(base + bits) + ip))
  return [...keys].map(key => elementOf('ranges', key))
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
    const slots = tables.get(list) ?? []
    slots[slot] = data
    tables.set(list, slots)
  }
  return tables
}

/**
 * Assigns the values of `wanted`, which contains no value twice, to as many slots. Values keep their slots,
 * and new values fill the gaps. A list that changes by one endpoint changes one or two slots, whatever its
 * length.
 */
export function assignSlots(wanted: readonly Octets[], before: Slots | undefined): readonly Octets[] {
  if (before === undefined) return wanted
  const slotOf = new Map(wanted.map((_, slot) => [before[slot], slot]))
  const dealt = wanted.map(() => GAP)
  const waiting: Octets[] = []
  for (const value of wanted) {
    const slot = slotOf.get(value)
    if (slot === undefined) waiting.push(value)
    else dealt[slot] = value
  }
  let next = 0
  return dealt.map(value => (value === GAP ? (waiting[next++] ?? GAP) : value))
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
