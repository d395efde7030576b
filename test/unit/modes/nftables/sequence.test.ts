import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import { finish } from '../../../../src/base/clock.ts'
import type { Backend } from '../../../../src/model/frontend.ts'
import {
  ENDPOINTS_MAPS,
  idOf,
  LOCAL_LIST,
  listOfPort,
  readPairKey,
} from '../../../../src/modes/nftables/layout.ts'
import { adoptRuleset } from '../../../../src/modes/nftables/observe.ts'
import { EMPTY_STATE, type NftablesState } from '../../../../src/modes/nftables/state.ts'
import { runs } from '../../../support/runs.ts'
import { changes, World } from '../world.ts'
import { CLUSTER, EXTERNAL_LOCAL, LOCAL } from './frontends.ts'
import { complaints, differences, elementsOf, listing, render, routes, tableIn } from './inspect.ts'

/** Endpoints that frontends lead to, read from elements alone: what packets would find. */
function served(state: NftablesState): string[] {
  return (['ip', 'ip6'] as const).flatMap(family => {
    const all = elementsOf(tableIn(state, family))
    const endpoints = all.filter(({ set }) => ENDPOINTS_MAPS.has(set))
    return all
      .filter(({ set }) => set === 'frontends' || set === 'nodeports')
      .map(({ comment, data }) => {
        const lists = [0, LOCAL_LIST].map(bit => {
          if (typeof data !== 'string') return []
          const list = listOfPort(idOf(data)) + bit
          return endpoints
            .flatMap(({ key, data: to }) => (readPairKey(key).list === list ? String(to) : []))
            .sort()
        })
        return `${family} ${comment} ${JSON.stringify(lists)}`
      })
      .sort()
  })
}

function expected(world: World): string[] {
  const data = ({ ip, port }: Backend) => `${ip}${String.fromCharCode(port >>> 8, port & 255)}\0\0`
  return (['ip', 'ip6'] as const).flatMap(family =>
    [...world.table.services.values()]
      .filter(one => !world.without.has(one.service))
      .flatMap(one => one.ports)
      .filter(port => (port.family === 'IPv4') === (family === 'ip'))
      .flatMap(port => {
        const uses = port.frontends.map(({ route }) => route)
        const cluster = uses.some(route => route.kind.startsWith('external') || route === CLUSTER)
        const local = uses.some(route => route === EXTERNAL_LOCAL || route === LOCAL)
        const lists = [cluster ? port.cluster : [], local ? port.local : []].map(list =>
          list.map(data).sort(),
        )
        return port.frontends.map(() => `${family} ${port.displayName} ${JSON.stringify(lists)}`)
      })
      .sort(),
  )
}

function observed(state: NftablesState): NftablesState {
  return finish(adoptRuleset(listing(state.ruleset)))
}

describe('a table that changes step by step', () => {
  it('is at every step what a full render gives, holds together, and serves what the model says', () => {
    fc.assert(
      fc.property(fc.array(changes, { minLength: 1, maxLength: 12 }), steps => {
        const world = new World()
        let state = EMPTY_STATE
        for (const step of steps) {
          world.apply(step)
          const without = new Set(world.without)
          state = render(world.table, state, { without })
          expect(complaints(state)).toEqual([])
          expect(served(state)).toEqual(expected(world))
          const full = render(world.table, { ...state, frontends: undefined }, { without })
          expect(differences(state, full)).toEqual([])
          expect(differences(full, state)).toEqual([])
        }
      }),
      { numRuns: runs(100) },
    )
  })

  it('is adopted from a listing without a difference', () => {
    fc.assert(
      fc.property(fc.array(changes, { minLength: 1, maxLength: 8 }), steps => {
        const world = new World()
        let state = EMPTY_STATE
        for (const step of steps) {
          world.apply(step)
          state = render(world.table, state, { without: new Set(world.without) })
        }
        const base = observed(state)
        const again = render(world.table, base, { without: new Set(world.without) })
        expect(differences(base, again)).toEqual([])
        expect(['ip', 'ip6'].map(family => routes(tableIn(again, family === 'ip' ? 'ip' : 'ip6')))).toEqual(
          ['ip', 'ip6'].map(family => routes(tableIn(state, family === 'ip' ? 'ip' : 'ip6'))),
        )
      }),
      { numRuns: runs(100) },
    )
  })

  it('ends the same, numbers apart, whether it changed step by step or came at once', () => {
    fc.assert(
      fc.property(fc.array(changes, { minLength: 1, maxLength: 8 }), steps => {
        const world = new World()
        let state = EMPTY_STATE
        for (const step of steps) {
          world.apply(step)
          state = render(world.table, state, { without: new Set(world.without) })
        }
        const once = render(world.table, EMPTY_STATE, { without: new Set(world.without) })
        expect(served(once)).toEqual(served(state))
        for (const family of ['ip', 'ip6'] as const)
          expect(routes(tableIn(once, family))).toEqual(routes(tableIn(state, family)))
      }),
      { numRuns: runs(50) },
    )
  })
})
