import { finish } from '../../../../src/base/clock.ts'
import { PersistentMap } from '../../../../src/base/collections.ts'
import { hex, readU32host } from '../../../../src/base/octets.ts'
import { diffRulesets } from '../../../../src/kernel/nft/diff.ts'
import { describeOperation } from '../../../../src/kernel/nft/print.ts'
import { formatElementData, formatElementKey } from '../../../../src/kernel/nft/print-data.ts'
import { formatRule } from '../../../../src/kernel/nft/print-rule.ts'
import type { Element, ElementGroup, NftFamily, Ruleset, Table } from '../../../../src/kernel/nft/state.ts'
import type { FrontendTable } from '../../../../src/model/frontend.ts'
import { chainsBehind } from '../../../../src/modes/nftables/chains.ts'
import { renderState } from '../../../../src/modes/nftables/render.ts'
import { DEFAULT_NFTABLES_OPTIONS, type NftablesOptions } from '../../../../src/modes/nftables/settings.ts'
import { EMPTY_STATE, type NftablesState } from '../../../../src/modes/nftables/state.ts'

export function render(
  frontends: FrontendTable,
  base: NftablesState = EMPTY_STATE,
  more: { without?: ReadonlySet<string>; options?: Partial<NftablesOptions> } = {},
): NftablesState {
  const options = { ...DEFAULT_NFTABLES_OPTIONS, ...more.options }
  return finish(renderState(frontends, { base, without: more.without ?? new Set() }, options))
}

export function tableIn(state: { ruleset: Ruleset }, family: NftFamily = 'ip'): Table {
  const table = state.ruleset.tables.find(one => one.family === family)
  if (table === undefined) throw new Error(`no table ${family}`)
  return table
}

export function elementsOf(table: Table): Element[] {
  return [...table.elements.values()].flat()
}

/** Elements of one set as `key : data`, sorted. */
export function lines(table: Table, name: string): string[] {
  const set = table.sets.get(name)
  if (set === undefined) throw new Error(`no set ${name}`)
  return elementsOf(table)
    .filter(element => element.set === name)
    .map(({ key, data }) => {
      const text = formatElementKey(set, key)
      return data === undefined ? text : `${text} : ${formatElementData(set, data)}`
    })
    .sort()
}

/** Where each frontend leads: `10.96.0.1 . tcp . 80 -> mod-3`. */
export function routes(table: Table): string[] {
  return ['frontends', 'nodeports'].flatMap(name => {
    const set = table.sets.get(name)
    if (set === undefined) throw new Error(`no set ${name}`)
    return elementsOf(table)
      .filter(element => element.set === name)
      .map(({ key, data }) => `${formatElementKey(set, key)} -> ${targetOf(table, data)}`)
      .sort()
  })
}

function targetOf(table: Table, value: Element['data']): string {
  if (typeof value !== 'string') throw new Error('a frontend without a value')
  const code = readU32host(value) & 0xfff
  const found = elementsOf(table).find(({ set, key }) => set === 'dispatch' && readU32host(key) === code)
  if (found === undefined || typeof found.data !== 'object') throw new Error(`nothing for code ${code}`)
  return found.data.chain ?? 'a verdict'
}

export function rulesText(table: Table, chain: string): string[] {
  const found = table.chains.get(chain)
  if (found === undefined) throw new Error(`no chain ${chain}`)
  return found.rules.map(rule => formatRule(rule, table))
}

/** What one transaction after the other would send, as text, until nothing is left. */
export function differences(
  from: { ruleset: Ruleset },
  to: { ruleset: Ruleset },
  late: string[] = [],
): string[] {
  const diff = diffRulesets(from.ruleset, to.ruleset, { lateSets: new Set(late) })
  return diff.transaction.map(operation => describeOperation(operation))
}

/** The ruleset as a client lists it: elements by set, in an order of the kernel's own. */
export function listing(ruleset: Ruleset): Ruleset {
  return {
    tables: ruleset.tables.map(table => {
      const bySet = new Map<string, Element[]>()
      for (const element of elementsOf(table).sort((a, b) => (hex(a.key) < hex(b.key) ? 1 : -1)))
        bySet.set(element.set, [...(bySet.get(element.set) ?? []), { ...element }])
      return { ...table, elements: PersistentMap.from<ElementGroup>(bySet) }
    }),
  }
}

/** What no table may violate, whatever it was rendered from. */
export function complaints(state: NftablesState): string[] {
  return state.ruleset.tables.flatMap(table => {
    const found: string[] = []
    const keys = new Set<string>()
    const counts = new Map<string, number>()
    for (const { set, key, data } of elementsOf(table)) {
      if (keys.has(`${set} ${key}`)) found.push(`${set} has ${hex(key)} twice`)
      keys.add(`${set} ${key}`)
      counts.set(set, (counts.get(set) ?? 0) + 1)
      if (table.sets.get(set)?.keyLength !== key.length) found.push(`${set} has a key of ${key.length} bytes`)
      if (typeof data === 'string' && table.sets.get(set)?.dataLength !== data.length)
        found.push(`${set} has data of ${data.length} bytes`)
      if (typeof data === 'object' && data.chain !== undefined && !table.chains.has(data.chain))
        found.push(`dispatch leads to ${data.chain}, which is missing`)
    }
    for (const { name, size } of table.sets.values())
      if ((counts.get(name) ?? 0) > size * 0.9) found.push(`${name} is too full`)
    for (const name of table.chains.keys())
      for (const behind of chainsBehind(name))
        if (!table.chains.has(behind)) found.push(`${name} lacks ${behind}`)
    const values = [...state.allocations[table.family].ids.byPort.values()]
    if (new Set(values).size !== values.length) found.push('two ports have one id')
    return found
  })
}
