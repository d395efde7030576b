import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import { PersistentMap } from '../../../../src/base/collections.ts'
import { u32host } from '../../../../src/base/octets.ts'
import type { Element, ElementGroup, Ruleset } from '../../../../src/kernel/nft/state.ts'
import type { Backend, ServiceFrontends } from '../../../../src/model/frontend.ts'
import { portData } from '../../../../src/modes/common/tables.ts'
import { assignSlots } from '../../../../src/modes/nftables/balanced-slots.ts'
import {
  ID_MAX,
  IdDraft,
  idsInUse,
  LATE_SETS,
  listOfPort,
  pairKey,
  STABLE_MAX,
  sizeFor,
} from '../../../../src/modes/nftables/layout.ts'
import { adoptRuleset } from '../../../../src/modes/nftables/observe.ts'
import { stableIds } from '../../../../src/modes/nftables/render-service.ts'
import type { NftablesState } from '../../../../src/modes/nftables/state.ts'
import {
  backends,
  clusterIp,
  EXTERNAL,
  ip4,
  nodePort,
  service,
  table,
  vip,
} from '../../../support/frontends.ts'
import { IS_QUICK, runs } from '../../../support/runs.ts'
import { complaints, differences, lines, listing, render, routes, tableIn } from './inspect.ts'

function web(n: number, count = 1, key = `ns/s${n}`): ServiceFrontends {
  return service(key, [
    { frontends: [clusterIp(ip4(10, 96, n >>> 8, n & 255), 80)], cluster: backends(count) },
  ])
}

function idsOf(state: NftablesState): Record<string, number> {
  return Object.fromEntries(state.allocations.ip.ids.byPort.entries())
}

describe('ids of service ports', () => {
  it('stay with their port and are not given to another one soon', () => {
    const one = render(table([web(1), web(2)]))
    const two = render(table([web(2)]), one)
    const three = render(table([web(2), web(3)]), two)
    const before = idsOf(one)['ns/s2:/TCP/IPv4']
    expect(idsOf(three)).toEqual({ 'ns/s2:/TCP/IPv4': before, 'ns/s3:/TCP/IPv4': 3 })
  })

  it('that entries of clients still name are not given away', () => {
    const draft = new IdDraft(idsInUse(new Map([['a', 1]]), new Set([2, 4])))
    expect(['b', 'c', 'a', 'b'].map(port => draft.take(port))).toEqual([5, 6, 1, 5])
  })

  it('start over at the end, and skip those in use', () => {
    const draft = new IdDraft({ ...idsInUse(new Map([['a', 1]]), new Set([2])), next: ID_MAX })
    expect(['b', 'c', 'd'].map(port => draft.take(port))).toEqual([ID_MAX, 3, 4])
  })

  it('run out: the Service stays out, with a reason, until there is one again', () => {
    const reserved = new Set(Array.from({ length: ID_MAX - 2 }, (_, at) => at + 3))
    const base = render(table([web(1)]))
    const crowded: NftablesState = {
      ...base,
      allocations: {
        ...base.allocations,
        ip: { ...base.allocations.ip, ids: { ...base.allocations.ip.ids, reserved, next: ID_MAX + 1 } },
      },
    }
    const all = table([web(1), web(2), web(3)])
    const state = render(all, crowded)
    expect(routes(tableIn(state))).toHaveLength(2)
    expect([...state.refusals.values()].flat()).toEqual([
      {
        object: expect.stringMatching(/^Service ns\/s[23]$/),
        field: 'metadata.name',
        value: expect.any(String),
        reason: expect.stringContaining('262143'),
      },
    ])
    const [left] = state.refusals.keys()
    const fewer = render(table([web(1), ...[web(2), web(3)].filter(one => one.service === left)]), state)
    const later = render(table([web(1), ...[web(2), web(3)].filter(one => one.service === left)]), fewer)
    expect(later.refusals.size).toBe(0)
    expect(routes(tableIn(later))).toHaveLength(2)
  })
})

describe('chains made on demand', () => {
  it('stay when the last list of their length goes, and serve the next one', () => {
    const one = render(table([web(1, 5)]))
    const two = render(table([web(1, 9)]), one)
    const three = render(table([web(1, 5)]), two)
    expect(tableIn(two).chains.has('mod-5')).toBe(true)
    expect(tableIn(three).chains.get('mod-5')).toBe(tableIn(one).chains.get('mod-5'))
    expect(differences(two, three).join()).not.toContain('chain')
  })

  it('give up their codes one render later than their place', () => {
    const at = (timeoutS: number) =>
      table([
        service('ns/web', [
          { affinityTimeoutS: timeoutS, frontends: [clusterIp(ip4(10, 96, 0, 1), 80)], cluster: backends(2) },
        ]),
      ])
    let state = render(at(1))
    for (let timeoutS = 2; timeoutS <= 66; timeoutS++) state = render(at(timeoutS), state)
    expect(state.allocations.ip.codes).toEqual(new Map([['aff-2-66', 16 + 65]]))
    state = render(at(67), state)
    expect(state.allocations.ip.codes.get('aff-2-67')).toBe(16)
  })
})

describe('sizes of sets', () => {
  it('have a sensible least, room for as many again, and stay until nearly full', () => {
    expect(sizeFor('frontends', 0, undefined)).toBe(4096)
    expect(sizeFor('frontends', 3000, undefined)).toBe(8192)
    expect(sizeFor('frontends', 3686, 4096)).toBe(4096)
    expect(sizeFor('frontends', 3687, 4096)).toBe(8192)
    expect(sizeFor('frontends', 10, 65536)).toBe(65536)
    expect(sizeFor('affinity', 0, undefined)).toBe(2 ** 20)
  })

  it.skipIf(IS_QUICK)('grow with the table, which is then replaced as a whole', () => {
    const few = render(table([web(1)]))
    const many = render(table(Array.from({ length: 1000 }, (_, i) => web(i))), few)
    expect(tableIn(many).sets.get('cluster-ips')?.size).toBe(2048)
    expect(differences(few, many)).toContain('delete table ip kube-proxy')
    expect(complaints(many)).toEqual([])
    const fewer = render(table([web(1)]), many)
    expect(differences(many, fewer)).not.toContain('delete table ip kube-proxy')
  })
})

describe('slots', () => {
  it('are kept by those who stay; newcomers fill gaps, and the last ones move into them', () => {
    expect(assignSlots(['a', 'b', 'c'], undefined)).toEqual(['a', 'b', 'c'])
    expect(assignSlots(['a', 'aa', 'b', 'c'], ['a', 'b', 'c'])).toEqual(['a', 'b', 'c', 'aa'])
    expect(assignSlots(['b', 'c'], ['a', 'b', 'c'])).toEqual(['c', 'b'])
    expect(assignSlots(['a', 'x', 'c'], ['a', 'b', 'c'])).toEqual(['a', 'x', 'c'])
    expect(assignSlots(['a', 'b', 'c'], ['c', undefined, 'z', 'a'])).toEqual(['c', 'a', 'b'])
    expect(assignSlots(['a'], [])).toEqual(['a'])
  })

  it('hold each wanted value once, and those that had one slot of the list in that slot', () => {
    const value = fc.constantFrom(...'abcdefgh')
    const anyWanted = fc.uniqueArray(value, { maxLength: 8 })
    // Slots that were read from the kernel have holes where an element is missing.
    const anyBefore = fc.sparseArray(value, { maxLength: 10 })
    fc.assert(
      fc.property(anyWanted, anyBefore, (wanted, before) => {
        const slots = assignSlots(wanted, before)
        expect(slots.toSorted()).toEqual(wanted.toSorted())
        for (const value of wanted) {
          const slot = before.indexOf(value)
          if (slot === before.lastIndexOf(value) && slot >= 0 && slot < wanted.length)
            expect(slots[slot]).toBe(value)
        }
      }),
      { numRuns: runs(500) },
    )
  })

  it('make one endpoint more or less a change of a few elements, however long the list', () => {
    const of = (from: number, count: number) =>
      table([
        service('ns/web', [
          { frontends: [clusterIp(ip4(10, 96, 0, 1), 80)], cluster: backends(count, { from }) },
        ]),
      ])
    const before = render(of(2, 500))
    const grown = render(of(1, 501), before)
    expect(differences(before, grown)).toEqual([
      expect.stringMatching(/^add element ip kube-proxy endpoints-tcp \{ [^,]* : 10\.21\.0\.1 \. 8080 \}$/),
    ])
    const shrunk = render(of(3, 499), grown)
    const told = differences(grown, shrunk, [...LATE_SETS]).join('\n')
    expect(told.match(/\d+\.\d+\.\d+\.\d+ \. 8080/g)?.length ?? 0).toBeLessThanOrEqual(2)
  })
})

describe('numbers of endpoints', () => {
  const NONE = new Map<string, number>()

  it('follow from the endpoint alone while nobody else has them', () => {
    const all = stableIds(['abcd', 'efgh', 'ijkl'], NONE)
    expect(stableIds(['efgh'], NONE)?.get('efgh')).toBe(all?.get('efgh'))
  })

  it('stay when an endpoint joins that would have the same one', () => {
    const [a, b] = collision()
    const alone = stableIds([b], NONE)
    const both = stableIds([a, b].sort(), alone ?? NONE)
    expect(both?.get(b)).toBe(alone?.get(b))
    expect(both?.get(a)).not.toBe(both?.get(b))
  })

  it('of one port do not follow those that another port gives to the same endpoints', () => {
    const [first, second] = collidingBackends()
    const port = { name: 'a', affinityTimeoutS: 60, frontends: [clusterIp(ip4(10, 96, 0, 1), 80)] }
    const other = { name: 'b', affinityTimeoutS: 60, frontends: [clusterIp(ip4(10, 96, 0, 1), 81)] }
    const ports = [
      { ...port, cluster: [second] },
      { ...other, cluster: [first, second] },
    ]
    const before = render(table([service('ns/web', ports)]))
    const changed = { ...port, affinityTimeoutS: 61, cluster: [second] }
    const after = render(table([service('ns/web', [changed, ...ports.slice(1)])]), before)
    expect(
      differences(before, after).filter(line => line.includes('element ip kube-proxy endpoints-tcp')),
    ).toEqual([])
  })

  it('are there for as many endpoints as there are numbers, and no more', () => {
    const many = Array.from({ length: STABLE_MAX }, (_, n) => u32host(n))
    expect(new Set(stableIds(many, NONE)?.values()).size).toBe(STABLE_MAX)
    expect(stableIds([...many, 'more!'], NONE)).toBeUndefined()
  })

  it('run out: the Service stays out, with a reason', () => {
    const port = { affinityTimeoutS: 60, frontends: [clusterIp(ip4(10, 96, 0, 1), 80)] }
    const state = render(table([service('ns/web', [{ ...port, cluster: backends(STABLE_MAX + 1) }])]))
    expect(routes(tableIn(state))).toEqual([])
    expect([...state.refusals.values()].flat()).toEqual([
      expect.objectContaining({ reason: expect.stringContaining('session affinity') }),
    ])
  })
})

function collision(): [string, string] {
  const seen = new Map<number, string>()
  for (let n = 0; n < 100_000; n++) {
    const endpoint = `${u32host(Math.imul(n, 0x9e3779b1))}${u32host(n)}`
    const id = stableIds([endpoint], new Map())?.get(endpoint) ?? 0
    const other = seen.get(id)
    if (other !== undefined) return [other, endpoint]
    seen.set(id, endpoint)
  }
  throw new Error('no collision')
}

/** Two endpoints that want the same number, in order of addresses. */
function collidingBackends(): [Backend, Backend] {
  const seen = new Map<number | undefined, Backend>()
  for (const backend of backends(STABLE_MAX)) {
    const endpoint = backend.ip + portData(backend.port)
    const number = stableIds([endpoint], new Map())?.get(endpoint)
    const other = seen.get(number)
    if (other !== undefined) return [other, backend]
    seen.set(number, backend)
  }
  throw new Error('no collision')
}

describe('adopting', () => {
  const everything = table([
    web(1, 3),
    service('ns/lb', [
      {
        name: 'http',
        affinityTimeoutS: 60,
        frontends: [
          clusterIp(ip4(10, 96, 0, 2), 80),
          nodePort(30080, EXTERNAL),
          vip(ip4(1, 2, 3, 4), 80, EXTERNAL, [{ ip: ip4(10, 0, 0, 0), bits: 8 }]),
        ],
        cluster: backends(2, { local: true }),
      },
    ]),
  ])

  function adopted(ruleset: Ruleset): NftablesState {
    return adoptRuleset(ruleset)
  }

  /** A listing with elements that nobody rendered. */
  function tampered(state: NftablesState, extra: readonly Element[]): Ruleset {
    const { tables } = listing(state.ruleset)
    return {
      tables: tables.map(one =>
        one.family === 'ip' ? { ...one, elements: one.elements.with([['extra', extra]]) } : one,
      ),
    }
  }

  it('gives every element to the Service it serves', () => {
    const rendered = render(everything)
    const groups = tableIn(adopted(listing(rendered.ruleset))).elements
    const own = tableIn(rendered).elements
    expect([...groups.keys()].sort()).toEqual([...own.keys()].sort())
    for (const [key, group] of own.entries()) expect(groups.get(key)).toHaveLength(group.length)
  })

  it('continues the numbers it finds, whatever they are', () => {
    let state = render(table(Array.from({ length: 40 }, (_, i) => web(i + 100))))
    state = render(everything, state)
    const base = adopted(listing(state.ruleset))
    expect(idsOf(base)).toEqual(idsOf(state))
    expect(base.allocations.ip.codes).toEqual(state.allocations.ip.codes)
    expect(differences(base, render(everything, base))).toEqual([])
  })

  it('keeps entries of clients, and their ids out of use', () => {
    const entry: Element = {
      set: 'affinity',
      key: u32host(listOfPort(77)) + ip4(9, 9, 9, 9),
      data: u32host(listOfPort(77) + 1),
      comment: '',
      expiresMs: 5000,
    }
    const base = adopted(tampered(render(everything), [entry]))
    expect(base.allocations.ip.ids.reserved).toEqual(new Set([77]))
    const again = render(everything, base)
    expect(differences(base, again)).toEqual([])
    expect(tableIn(again).elements.get('@affinity')).toEqual([entry])
    expect(render(table([web(9)]), again).allocations.ip.ids.next).toBeGreaterThan(77)
  })

  it('removes what makes no sense, and does not trip over it', () => {
    const state = render(everything)
    const strays: Element[] = [
      {
        set: 'endpoints-tcp',
        key: pairKey(listOfPort(500), 3),
        data: `${ip4(1, 1, 1, 1)}\0\x50\0\0`,
        comment: '',
      },
      {
        set: 'frontends',
        key: `${ip4(7, 7, 7, 7)}\x06\0\0\0\0\x50\0\0`,
        data: u32host(listOfPort(1)),
        comment: 'not a name',
      },
      {
        set: 'frontends',
        key: `${ip4(7, 7, 7, 8)}\x06\0\0\0\0\x50\0\0`,
        data: u32host(listOfPort(999)),
        comment: 'ns/lb:http',
      },
      { set: 'cluster-ips', key: ip4(7, 7, 7, 9), data: undefined, comment: '' },
      { set: 'dispatch', key: u32host(4000), data: { code: -4, chain: 'elsewhere' }, comment: '' },
      { set: 'ranges', key: u32host(listOfPort(500) + 8) + ip4(10, 0, 0, 0), data: undefined, comment: '' },
    ]
    const base = adopted(tampered(state, strays))
    const again = render(everything, base)
    const told = differences(base, again)
    expect(told.every(line => line.startsWith('delete element'))).toBe(true)
    expect(told.join()).toContain('7.7.7.9')
    expect(lines(tableIn(again), 'frontends')).toEqual(lines(tableIn(state), 'frontends'))
  })

  it('takes an empty kernel for what it is', () => {
    const base = adopted({ tables: [] })
    expect(base.ruleset.tables).toEqual([])
    expect(render(table([web(1)]), base).allocations).toEqual(render(table([web(1)])).allocations)
  })

  it('of a table without chains starts like a first load', () => {
    const bare = listing(render(everything).ruleset)
    const emptied: Ruleset = {
      tables: bare.tables.map(one => ({
        ...one,
        chains: new Map(),
        elements: PersistentMap.from<ElementGroup>([]),
      })),
    }
    const again = render(everything, adopted(emptied))
    expect(complaints(again)).toEqual([])
    expect(tableIn(again).chains.has('mod-4')).toBe(true)
  })
})
