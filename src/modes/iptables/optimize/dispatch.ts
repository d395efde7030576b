import type { XtRule } from '../../../kernel/xt/rule.ts'
import type { XtChain, XtEntry, XtPlace } from '../../../kernel/xt/scope.ts'
import { NFT_FAMILIES } from '../../common/family.ts'
import type { ChainNames } from '../../xt-common/layout.ts'
import { jump, NO_MATCHES } from '../../xt-common/rules-parts.ts'
import { addressLeaf, addressTree, type Tree } from './by-address.ts'
import { portLeaf, portTree, portWay } from './by-port.ts'
import { type Division, type List, listsOf } from './lists.ts'

interface Dividing {
  readonly lists: readonly List[]
  /** Lists that are short in most clusters are divided, too. */
  readonly large: boolean
}

/** Moves an entry into the chain in which packets meet it. */
export function placeEntry(entry: XtEntry, statics: Dividing): XtEntry {
  const list = statics.lists.find(({ table, chain }) => table === entry.table && chain === entry.chain)
  if (list === undefined || !isDivided(list, statics)) return entry
  for (const division of list.by) {
    const chain = leafOf(division, entry.rule)
    if (chain !== undefined) return { ...entry, chain }
  }
  return entry
}

/** Makes the chains that entries are divided among, and the chains that lead to them. */
export function dividedChains(statics: Dividing): readonly XtChain[] {
  return NFT_FAMILIES.flatMap(family =>
    statics.lists
      .filter(list => isDivided(list, statics))
      .flatMap(list =>
        treesOf(list, { family, table: list.table }).flatMap(({ tree }) => [...tree.chains, tree.root]),
      ),
  )
}

export interface EntryChain extends XtPlace {
  readonly chain: string
}

/** Lists the chains of table nat that contain only entries. All of them are fixed chains. */
export function entryChains(names: ChainNames): readonly EntryChain[] {
  return dividedChains({ large: false, lists: listsOf(names) })
    .filter(({ table, rules }) => table === 'nat' && rules.length === 0)
    .map(({ family, table, name }) => ({ family, table, chain: name }))
}

/** Makes the rules before the entries of a chain: jumps to the entries in other chains. */
export function waysFrom(chain: XtChain, statics: Dividing): readonly XtRule[] {
  const list = statics.lists.find(({ table, chain: name }) => table === chain.table && name === chain.name)
  if (list === undefined || !isDivided(list, statics)) return NO_RULES
  return treesOf(list, { family: chain.family, table: chain.table }).map(({ way }) => way)
}

const NO_RULES: readonly XtRule[] = []

function isDivided({ onlyLarge }: List, { large }: Pick<Dividing, 'large'>): boolean {
  return large || !onlyLarge
}

function leafOf(division: Division, rule: XtRule): string | undefined {
  return division.kind === 'address'
    ? addressLeaf(division.prefix, division.levels, rule.destination)
    : portLeaf(division.prefix, division.protocol, rule)
}

function treesOf({ by }: List, place: XtPlace): readonly { readonly tree: Tree; readonly way: XtRule }[] {
  return by.map(division => {
    if (division.kind === 'address') {
      const tree = addressTree(place, division.prefix, division.levels)
      return { tree, way: { matches: NO_MATCHES, target: jump(tree.root.name) } }
    }
    const tree = portTree(place, division.prefix, division.protocol)
    return { tree, way: portWay(tree, division.protocol) }
  })
}
