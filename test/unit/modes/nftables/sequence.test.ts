import { describe, expect, it } from 'vitest'
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
import { CLUSTER, EXTERNAL_LOCAL, LOCAL } from '../../../support/frontends.ts'
import { atEachStep, atTheEnd, type World } from '../world.ts'
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
  return adoptRuleset(listing(state.ruleset))
}

function next({ table, without }: World, base: NftablesState): NftablesState {
  return render(table, base, { without: new Set(without) })
}

describe('a table that changes step by step', () => {
  const course = (tries: number) => ({ empty: EMPTY_STATE, next, tries })

  it('is at every step what a full render gives, holds together, and serves what the model says', () => {
    atEachStep(course(100), (state, world) => {
      expect(complaints(state)).toEqual([])
      expect(served(state)).toEqual(expected(world))
      const full = next(world, { ...state, frontends: undefined })
      expect(differences(state, full)).toEqual([])
      expect(differences(full, state)).toEqual([])
    })
  })

  it('is adopted from a listing without a difference', () => {
    atTheEnd(course(100), (state, world) => {
      const base = observed(state)
      const again = next(world, base)
      expect(differences(base, again)).toEqual([])
      for (const family of ['ip', 'ip6'] as const)
        expect(routes(tableIn(again, family))).toEqual(routes(tableIn(state, family)))
    })
  })

  it('ends the same, numbers apart, whether it changed step by step or came at once', () => {
    atTheEnd(course(50), (state, world) => {
      const once = next(world, EMPTY_STATE)
      expect(served(once)).toEqual(served(state))
      for (const family of ['ip', 'ip6'] as const)
        expect(routes(tableIn(once, family))).toEqual(routes(tableIn(state, family)))
    })
  })
})
