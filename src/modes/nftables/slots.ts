import type { Octets } from '../../base/octets.ts'
import type { ElementGroup } from '../../kernel/nft/state.ts'
import { type EndpointsMap, readPairKey } from './layout.ts'

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
