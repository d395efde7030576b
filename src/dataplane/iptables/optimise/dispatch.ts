import type { XtRule } from '../../../kernel/xt/rule.ts'
import type { XtChain, XtEntry, XtPlace, XtTableName } from '../../../kernel/xt/scope.ts'
import { NFT_FAMILIES } from '../../common/family.ts'
import { KUBE_EXTERNAL_SERVICES, KUBE_NODEPORTS, KUBE_PROXY_FIREWALL, KUBE_SERVICES } from '../layout.ts'
import { jump, NO_MATCHES } from '../rules-parts.ts'
import type { Statics } from '../statics.ts'
import { addressLeaf, addressTree } from './by-address.ts'
import { type PortProtocol, portLeaf, portTree, portWay } from './by-port.ts'
import { HEALTH_PORTS, NAT_ADDRESSES, NAT_PORTS } from './names.ts'
import type { Tree } from './tree.ts'

/** A chain with entries of all Services, and how these are divided among chains of their own. */
interface List {
  readonly table: XtTableName
  readonly chain: string
  readonly by: readonly Division[]
  /** Short in most clusters, where dividing costs each packet more than it saves: only where there is much of everything. */
  readonly onlyLarge: boolean
}

type Division =
  | { readonly kind: 'address'; readonly prefix: string; readonly levels: 1 | 2 }
  | { readonly kind: 'port'; readonly prefix: string; readonly protocol: PortProtocol }

const LISTS: readonly List[] = [
  {
    table: 'nat',
    chain: KUBE_SERVICES,
    by: [{ kind: 'address', prefix: NAT_ADDRESSES, levels: 2 }],
    onlyLarge: false,
  },
  {
    table: 'nat',
    chain: KUBE_NODEPORTS,
    by: [
      { kind: 'port', prefix: NAT_PORTS.TCP, protocol: 'TCP' },
      { kind: 'port', prefix: NAT_PORTS.UDP, protocol: 'UDP' },
    ],
    onlyLarge: false,
  },
  ...[KUBE_SERVICES, KUBE_EXTERNAL_SERVICES, KUBE_PROXY_FIREWALL].map((chain): List => {
    return {
      table: 'filter',
      chain,
      by: [{ kind: 'address', prefix: `${chain}-IP`, levels: 1 }],
      onlyLarge: true,
    }
  }),
  {
    table: 'filter',
    chain: KUBE_NODEPORTS,
    by: [{ kind: 'port', prefix: HEALTH_PORTS, protocol: 'TCP' }],
    onlyLarge: true,
  },
]

/** An entry in the chain in which packets meet it. */
export function placeEntry(entry: XtEntry, statics: Statics): XtEntry {
  const list = LISTS.find(({ table, chain }) => table === entry.table && chain === entry.chain)
  if (list === undefined || !isDivided(list, statics)) return entry
  for (const division of list.by) {
    const chain = leafOf(division, entry.rule)
    if (chain !== undefined) return { ...entry, chain }
  }
  return entry
}

/** The chains that entries are divided among, and those that lead there. */
export function dividedChains(statics: Pick<Statics, 'large'>): readonly XtChain[] {
  return NFT_FAMILIES.flatMap(family =>
    LISTS.filter(list => isDivided(list, statics)).flatMap(list =>
      treesOf(list, { family, table: list.table }).flatMap(({ tree }) => [...tree.chains, tree.root]),
    ),
  )
}

export interface EntryChain extends XtPlace {
  readonly chain: string
}

/** Chains of table nat in which nothing stands but entries: all that are there always. */
export function entryChains(): readonly EntryChain[] {
  return dividedChains({ large: false })
    .filter(({ table, rules }) => table === 'nat' && rules.length === 0)
    .map(({ family, table, name }) => ({ family, table, chain: name }))
}

/** What stands before the entries of a chain: the ways to those that are elsewhere. */
export function waysFrom(chain: XtChain, statics: Statics): readonly XtRule[] {
  const list = LISTS.find(({ table, chain: name }) => table === chain.table && name === chain.name)
  if (list === undefined || !isDivided(list, statics)) return NO_RULES
  return treesOf(list, { family: chain.family, table: chain.table }).map(({ way }) => way)
}

const NO_RULES: readonly XtRule[] = []

function isDivided({ onlyLarge }: List, { large }: Pick<Statics, 'large'>): boolean {
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
