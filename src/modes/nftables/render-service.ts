import { trimmed } from '../../base/collections.ts'
import { type Octets, readU32host, u32host } from '../../base/octets.ts'
import type { Element, ElementGroup } from '../../kernel/nft/state.ts'
import { fnv1a } from '../../model/balance.ts'
import { needsOf } from '../../model/endpoint-choice.ts'
import type { Backend, Frontend, PortFrontends, ServiceFrontends } from '../../model/frontend.ts'
import { CHAIN_REJECT } from '../common/rules.ts'
import { commentOf, type FamilyLayout, portKey } from '../common/tables.ts'
import { assignSlots, balancedCount, balancedSlots, endpointData, GAP, type Slots } from './balanced-slots.ts'
import { externalChain, externalLocalChain, firewallChain, pickChain } from './chains.ts'
import {
  CODE_DROP,
  CODE_REJECT,
  type CodeDraft,
  ENDPOINTS,
  type EndpointsMap,
  ID_MAX,
  type IdDraft,
  isNumbered,
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
  const elements = ips.map(key => elementOf('cluster-ips', key))
  for (const port of ports) {
    if (port.family !== model || port.frontends.length === 0) continue
    const made = portElements(context, port, before)
    if ('reason' in made) return made
    for (const element of made) elements.push(element)
  }
  return trimmed(elements)
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
  return [...frontends, ...endpoints, ...rangeElements(context.layout, port, base)]
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
  readonly backends: readonly Backend[]
}

const NO_BACKENDS: readonly Backend[] = []

/** Gives the lists of a port that its frontends use. */
function listsOf({ frontends, cluster, local }: PortFrontends, base: number): readonly EndpointList[] {
  const needs = needsOf(frontends)
  return [
    { list: base, marker: STABLE, backends: needs.cluster ? cluster : NO_BACKENDS },
    { list: base + LOCAL_LIST, marker: STABLE_LOCAL, backends: needs.local ? local : NO_BACKENDS },
  ]
}

/** Makes the endpoints of a port without affinity, slot by slot. */
function dealt(port: PortFrontends, base: number, before: ElementGroup): readonly Element[] {
  const set = ENDPOINTS[port.protocol]
  const slots = slotsOf(before, set)
  const { balance } = port
  const elements: Element[] = []
  for (const { list, backends } of listsOf(port, base)) {
    const values = backends.map(endpointData)
    const filled =
      balance === undefined
        ? assignSlots(values, slots.get(list))
        : balancedSlots({ backends, values, before: slots.get(list) }, balance)
    for (const element of slotElements(set, list, filled)) elements.push(element)
  }
  return elements
}

/** Makes the elements of a list's slots. Empty slots have none. */
function slotElements(
  set: EndpointsMap | 'slots',
  list: number,
  filled: readonly Octets[],
): readonly Element[] {
  const elements: Element[] = []
  filled.forEach((data, slot) => {
    if (data !== GAP) elements.push(elementOf(set, pairKey(list, slot), data))
  })
  return elements
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
  const all = new Set(lists.flatMap(({ backends }) => backends.map(endpointData)))
  const ids = stableIds([...all].sort(), numbersOf(before, base))
  if (ids === undefined) return undefined
  const slots = slotsOf(before, 'slots')
  return lists.flatMap(({ list, marker, backends }) => {
    const endpoints = backends.map(endpointData)
    const numbers = endpoints.map(data => base + (ids.get(data) ?? 0))
    const values = numbers.map(u32host)
    const before = slots.get(list)
    const { balance } = port
    return [
      ...endpoints.map((data, at) =>
        elementOf(ENDPOINTS[port.protocol], pairKey(numbers[at] ?? 0, marker), data),
      ),
      ...slotElements(
        'slots',
        list,
        balance === undefined
          ? assignSlots(values, before)
          : balancedSlots({ backends, values, before }, balance),
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
  if (ranges.length === 0) return []
  const own = ranges.filter(({ ip }) => ip.length === addressLength)
  const keys = new Set(own.map(({ ip, bits }) => u32host(base + bits) + ip))
  return [...keys].map(key => elementOf('ranges', key))
}

/** Gives the numbers that the endpoints of one service port have, by address and port. */
function numbersOf(group: ElementGroup, base: number): ReadonlyMap<Octets, number> {
  const numbers = new Map<Octets, number>()
  for (const element of group) {
    const { key, data } = element
    if (typeof data !== 'string' || !isNumbered(element)) continue
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
  const { cluster, local, balance, affinityTimeoutS } = port
  const countOf = (backends: readonly Backend[]) =>
    balance === undefined ? backends.length : balancedCount(backends, balance)
  switch (route.kind) {
    case 'reject':
      return CODE_REJECT
    case 'drop':
      return CODE_DROP
    case 'internal': {
      const over = route.over === 'local' ? local : cluster
      if (over.length > 0) return pickChain(route.over === 'local', countOf(over), affinityTimeoutS)
      return route.over === 'local' ? CODE_DROP : CODE_REJECT
    }
    case 'external-cluster':
      return cluster.length === 0 ? CODE_REJECT : externalChain(countOf(cluster), affinityTimeoutS)
    case 'external-local':
      return externalLocalChain(countOf(cluster), countOf(local), affinityTimeoutS)
  }
}

/** Slots by list id. A list has gaps if another program changed the map. */
type SlotTable = ReadonlyMap<number, Slots>

const NO_SLOTS: ReadonlyMap<number, Slots> = new Map()

/** Reads the slots from elements. Slot numbers above the number of elements are not ours: they would take memory. */
function slotsOf(group: ElementGroup, set: EndpointsMap | 'slots'): SlotTable {
  if (group.length === 0) return NO_SLOTS
  const tables = new Map<number, (Octets | undefined)[]>()
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
    let id = fnv1a(endpoint) % STABLE_MAX
    while (taken.has(id)) id = (id + 1) % STABLE_MAX
    taken.add(id)
    ids.set(endpoint, id)
  }
  return ids
}
