import { expect, it } from 'vitest'
import { finish } from '../../../../src/base/clock.ts'
import { PersistentMap } from '../../../../src/base/collections.ts'
import type { Table } from '../../../../src/kernel/nft/state.ts'
import { adoptRuleset, bookOf } from '../../../../src/modes/userspace/plane.ts'
import { renderUserspaceState } from '../../../../src/modes/userspace/render.ts'
import { DEFAULT_USERSPACE_OPTIONS } from '../../../../src/modes/userspace/settings.ts'
import {
  diffStates,
  EMPTY_STATE,
  resolveElement,
  type UserspaceState,
} from '../../../../src/modes/userspace/state.ts'
import { atEachStep, atTheEnd, type World } from '../world.ts'

function render(world: World, base: UserspaceState): UserspaceState {
  const without = new Set(world.without)
  return finish(renderUserspaceState(world.table, { base, without }, DEFAULT_USERSPACE_OPTIONS))
}

function differences(from: UserspaceState, to: UserspaceState): string[] {
  const { describe } = diffStates(from, to)
  return [...describe()].map(({ verb, object }) => `${verb} ${object}`)
}

/** Ports as a kernel might have chosen them. */
function ports(state: UserspaceState): Map<string, number> {
  const names = [...state.forwarders.values()].flatMap(({ key, lists }) =>
    lists.map(list => `${list} ${key}`),
  )
  return new Map(names.map((name, at) => [name, 40_000 + at]))
}

/** The tables of a state as a kernel holds them, its elements in no groups. */
function inKernel({ ruleset }: UserspaceState, portOf: (key: string, list: string) => number | undefined) {
  const tables = ruleset.tables.map((table): Table => {
    const elements = [...table.elements.values()].flat()
    const resolved = elements.map(element => resolveElement(element, table.family, portOf))
    return { ...table, elements: PersistentMap.from([['all', resolved]]) }
  })
  return { tables }
}

const course = (tries: number) => ({ empty: EMPTY_STATE, next: render, tries })

it('is at every step what a full render gives, in the kernel and in the process', () => {
  atEachStep(course(100), (state, world) => {
    const full = render(world, EMPTY_STATE)
    expect(differences(state, full)).toEqual([])
    expect(differences(full, state)).toEqual([])
    const sorted = (map: UserspaceState['places']) =>
      map
        .keys()
        .map(key => `${key} ${map.get(key)}`)
        .sort()
    expect(sorted(state.places)).toEqual(sorted(full.places))
    expect(state.refusals).toEqual(full.refusals)
  })
})

it('is adopted from a listing without a difference, whatever the ports of its listeners', () => {
  atTheEnd(course(50), (_, world) => {
    const state = render(world, EMPTY_STATE)
    const numbers = ports(state)
    const portOf = (key: string, list: string) => numbers.get(`${list} ${key}`)
    const book = bookOf(state.forwarders, portOf)
    const found = adoptRuleset(inKernel(state, portOf), { forwarders: state.forwarders, book })
    expect(differences(found, state)).toEqual([])
    // Nothing that another process listened at is taken for ours.
    const stale = adoptRuleset(inKernel(state, portOf), {
      forwarders: EMPTY_STATE.forwarders,
      book: new Map(),
    })
    const wanted = [...state.forwarders.values()].length
    expect(differences(stale, state).length).toBeGreaterThanOrEqual(wanted)
  })
})
