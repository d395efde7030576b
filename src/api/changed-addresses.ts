import { compareIps, type Ip } from '../base/ip.ts'
import { Pauses, type Steps } from '../base/steps.ts'
import type { SliceList } from '../model/endpoint.ts'
import { isSame } from '../model/equal.ts'
import type { Backend } from '../model/frontend.ts'
import { termsOf } from './endpoints.ts'
import type { ServiceView } from './objects.ts'
import { usesOf } from './port-uses.ts'

/**
 * Those about whose endpoints two views of a Service may say different things: where they differ in a back end or in a
 * hostname. Undefined where they differ in what concerns all. Costs a comparison of each back end, and makes nothing.
 */
export function* changedAddresses(from: ServiceView, to: ServiceView): Steps<ReadonlySet<Ip> | undefined> {
  if (from.service !== to.service && !isSameTerms(from, to)) return undefined
  const [before, after] = [usesOf(from.frontends), usesOf(to.frontends)]
  if (before.length !== after.length) return undefined
  const changed = new Set<Ip>()
  for (const [index, now] of after.entries()) {
    const old = before[index]
    if (old?.key !== now.key) return undefined
    yield* addOtherBackends(changed, old.internal, now.internal)
    // One list is mostly behind all addresses of a port.
    if (old.external !== old.internal || now.external !== now.internal)
      yield* addOtherBackends(changed, old.external, now.external)
  }
  yield* addRenamed(changed, from.slices, to.slices)
  return changed
}

function isSameTerms(from: ServiceView, to: ServiceView): boolean {
  const [before, after] = [termsOf(from.service), termsOf(to.service)]
  return before.scoped === after.scoped && isSame([...before.targets], [...after.targets])
}

function addOtherBackends(changed: Set<Ip>, from: readonly Backend[], to: readonly Backend[]): Steps<void> {
  return inPairs(from, to, {
    order: (a, b) => (a.ip === b.ip ? a.port - b.port : compareIps(a.ip, b.ip)),
    visit(a, b) {
      const ip = a?.ip ?? b?.ip
      if (ip !== undefined && (a?.ip !== b?.ip || a?.local !== b?.local)) changed.add(ip)
    },
  })
}

function addRenamed(changed: Set<Ip>, from: SliceList, to: SliceList): Steps<void> {
  return inPairs(from, to, {
    order: (a, b) => (a.key === b.key ? 0 : a.key < b.key ? -1 : 1),
    visit(a, b) {
      const [old, now] = [a?.hostnames, b?.hostnames]
      if (old === now) return
      for (const names of [old, now]) for (const ip in names) if (old?.[ip] !== now?.[ip]) changed.add(ip)
    },
  })
}

interface Pairing<T> {
  readonly order: (a: T, b: T) => number
  /** Gets two items of the same key, or one without a counterpart. */
  readonly visit: (from: T | undefined, to: T | undefined) => void
}

/** Walks two sorted lists, neither of which has a key twice. */
function* inPairs<T>(from: readonly T[], to: readonly T[], { order, visit }: Pairing<T>): Steps<void> {
  if (from === to) return
  let [left, right] = [0, 0]
  const pauses = new Pauses()
  while (left < from.length || right < to.length) {
    const [a, b] = [from[left], to[right]]
    const first = a === undefined ? 1 : b === undefined ? -1 : order(a, b)
    visit(first <= 0 ? a : undefined, first >= 0 ? b : undefined)
    if (first <= 0) left++
    if (first >= 0) right++
    if (pauses.due()) yield
  }
}
