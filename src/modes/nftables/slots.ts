import type { Octets } from '../../base/octets.ts'
import type { ElementGroup } from '../../kernel/nft/state.ts'
import { type EndpointsMap, readPairKey, STABLE_MAX } from './layout.ts'

/** What the slots of a list hold, slot by slot; with gaps if somebody tampered with them. */
type Slots = (Octets | undefined)[]

/** By list id. */
export type SlotTable = ReadonlyMap<number, Slots>

/** Reads them back from elements. A slot beyond their number cannot be ours, and must not cost memory. */
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
 * Deals `wanted` (no value twice) out to as many slots. Values keep the slots they had, and newcomers fill the gaps:
 * a list that changes by one endpoint changes one slot or two, however long it is.
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
 * Numbers of endpoints, below STABLE_MAX, that stay the same as long as the endpoint exists, whatever joins or leaves its
 * list, so that entries of `affinity` stay true: those they had `before`, and for a newcomer FNV-1a over address and
 * port, or the next free number. `endpoints` must be in an order that follows from its members alone. Undefined when
 * there are too many.
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
