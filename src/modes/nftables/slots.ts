import type { Octets } from '../../base/octets.ts'
import type { ElementGroup } from '../../kernel/nft/state.ts'
import { type EndpointsMap, readPairKey, STABLE_MAX } from './layout.ts'

/** The values of a list, slot by slot. The list has gaps if another program changed the map. */
type Slots = (Octets | undefined)[]

/** Slots by list id. */
export type SlotTable = ReadonlyMap<number, Slots>

/**
 * Reads the slots from elements. A slot number above the number of elements cannot be ours and is ignored, so
 * that it takes no memory.
 */
export function slotsOf(group: ElementGroup, set: EndpointsMap | 'slots'): SlotTable {
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
  if (before === undefined || same(wanted, before)) return wanted
  const slotOf = new Map<Octets, number>()
  for (let slot = 0; slot < Math.min(before.length, wanted.length); slot++) {
    const value = before[slot]
    if (value !== undefined) slotOf.set(value, slot)
  }
  const dealt: Slots = new Array<Octets | undefined>(wanted.length).fill(undefined)
  const waiting: Octets[] = []
  for (const value of wanted) {
    const slot = slotOf.get(value)
    if (slot === undefined) waiting.push(value)
    else dealt[slot] = value
  }
  let next = 0
  return dealt.map(value => value ?? waiting[next++] ?? '')
}

function same(wanted: readonly Octets[], before: Slots): boolean {
  return wanted.length === before.length && wanted.every((value, slot) => value === before[slot])
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
