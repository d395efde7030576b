import type { Octets } from '../../base/octets.ts'
import { isHashed } from '../../model/balance.ts'
import type { Backend } from '../../model/frontend.ts'
import type { BalanceSettings, PortBalance } from '../../model/service.ts'
import { portData } from '../common/tables.ts'
import type { SlotCount } from './chains.ts'
import { hashedSlots, maglevSlots, maglevTable, WEIGHT_FACTOR_MAX, type Weighted } from './maglev.ts'

/** The slots of a list of endpoints, by the policy of its port (docs/balance.md). */

/** The values of a list, slot by slot. */
export type Slots = readonly (Octets | undefined)[]

/** No endpoint. */
export const GAP: Octets = ''

export function endpointData({ ip, port }: Backend): Octets {
  return ip + portData(port)
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

/** Weights of a list that is chosen from at random are rounded where they need more slots than these, for each endpoint. */
const SLOTS_PER_ENDPOINT_MAX = 16
const RANDOM_SLOTS_MIN = 4_096

function randomSlotsMax(endpoints: number): number {
  return Math.max(RANDOM_SLOTS_MIN, SLOTS_PER_ENDPOINT_MAX * endpoints)
}

/** Gives the most slots that a list of so many endpoints can have. */
export function slotsMax(endpoints: number, settings: BalanceSettings): number {
  if (endpoints < 2) return endpoints
  const weight = settings.weights.reduce((most, its) => Math.max(most, its.weight), 1)
  if (isHashed(settings)) return hashedSlots(endpoints * Math.min(weight, WEIGHT_FACTOR_MAX))
  const total = endpoints * weight * (settings.policy === 'local-first' ? endpoints : 1)
  return Math.min(total, randomSlotsMax(endpoints))
}

/** Gives the number of slots of a list, as chains are named by it. One endpoint needs no choice, whatever the policy. */
export function balancedCount(backends: readonly Backend[], { policy }: PortBalance): SlotCount {
  if (backends.length < 2) return backends.length
  if (policy === 'maglev') return `${maglevSlots(weightedOf(backends))}h`
  if (policy === 'maglev/5-tuple') return `${maglevSlots(weightedOf(backends))}t`
  return copiesOf(backends).reduce((sum, copies) => sum + copies, 0)
}

interface BalancedList {
  readonly backends: readonly Backend[]
  /** The value of each backend's slots. */
  readonly values: readonly Octets[]
  readonly before: Slots | undefined
}

/** Gives the values of a list, slot by slot; GAP for an empty slot. */
export function balancedSlots(
  { backends, values, before }: BalancedList,
  balance: PortBalance,
): readonly Octets[] {
  if (backends.length < 2) return values
  if (isHashed(balance))
    return [...maglevTable(weightedOf(backends), balance.seed)].map(at => values[at] ?? GAP)
  return assignCopies(values, copiesOf(backends), before)
}

function weightedOf(backends: readonly Backend[]): readonly Weighted[] {
  return backends.map(backend => ({ endpoint: endpointData(backend), weight: backend.weight ?? 1 }))
}

/** Gives the number of slots of each endpoint. */
function copiesOf(backends: readonly Backend[]): readonly number[] {
  const weights = backends.map(({ weight = 1 }) => weight)
  const total = weights.reduce((sum, weight) => sum + weight, 0)
  const most = randomSlotsMax(backends.length)
  return total <= most ? weights : weights.map(weight => Math.max(1, Math.round((weight * most) / total)))
}

/** Assigns each value to as many slots as it has copies. Values keep their slots, as in assignSlots. */
function assignCopies(
  values: readonly Octets[],
  copies: readonly number[],
  before: Slots | undefined,
): readonly Octets[] {
  const left = new Map(values.map((value, at) => [value, copies[at] ?? 0]))
  const takes = (value: Octets): boolean => {
    const its = left.get(value) ?? 0
    if (its > 0) left.set(value, its - 1)
    return its > 0
  }
  const total = copies.reduce((sum, its) => sum + its, 0)
  const kept = Array.from({ length: total }, (_, slot) => {
    const value = before?.[slot] ?? GAP
    return takes(value) ? value : GAP
  })
  const waiting = values.flatMap(value => new Array<Octets>(left.get(value) ?? 0).fill(value))
  let next = 0
  return kept.map(value => (value === GAP ? (waiting[next++] ?? GAP) : value))
}
