import type { NftFamily } from '../../../kernel/nft/state.ts'
import type { XtAddress, XtMatch, XtPorts, XtRule } from '../../../kernel/xt/rule.ts'
import type { XtChain, XtEntry, XtPlace, XtTableName } from '../../../kernel/xt/scope.ts'
import type { Protocol } from '../../../model/service.ts'
import { NFT_FAMILIES } from '../../common/tables.ts'
import { type ChainNames, dispatchNames } from '../../xt-common/layout.ts'
import { jump, NO_MATCHES, PROTOCOLS } from '../../xt-common/rules-parts.ts'

/** A chain with entries of all Services, and how these are divided among chains of their own. */
export interface List {
  readonly table: XtTableName
  readonly chain: string
  readonly by: readonly Division[]
  /**
   * The list is short in most clusters, where dividing costs each packet more than it saves. It is divided only in
   * large clusters.
   */
  readonly onlyLarge: boolean
}

type Division =
  | { readonly kind: 'address'; readonly prefix: string; readonly levels: 1 | 2 }
  | { readonly kind: 'port'; readonly prefix: string; readonly protocol: PortProtocol }

type PortProtocol = Extract<Protocol, 'TCP' | 'UDP'>

export function listsOf(names: ChainNames): readonly List[] {
  const prefixes = dispatchNames(names.prefix)
  const filtered = (chain: string, prefix: string): List => {
    return { table: 'filter', chain, by: [{ kind: 'address', prefix, levels: 1 }], onlyLarge: true }
  }
  return [
    {
      table: 'nat',
      chain: names.services,
      by: [{ kind: 'address', prefix: prefixes.natAddresses, levels: 2 }],
      onlyLarge: false,
    },
    {
      table: 'nat',
      chain: names.nodePorts,
      by: [
        { kind: 'port', prefix: prefixes.natPorts.TCP, protocol: 'TCP' },
        { kind: 'port', prefix: prefixes.natPorts.UDP, protocol: 'UDP' },
      ],
      onlyLarge: false,
    },
    filtered(names.services, prefixes.services),
    filtered(names.externalServices, prefixes.externalServices),
    filtered(names.proxyFirewall, prefixes.proxyFirewall),
    {
      table: 'filter',
      chain: names.nodePorts,
      by: [{ kind: 'port', prefix: prefixes.healthPorts, protocol: 'TCP' }],
      onlyLarge: true,
    },
  ]
}

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

/** A chain that sends each packet to the one chain whose entries may match it, and all the chains below it. */
interface Tree {
  readonly root: XtChain
  readonly chains: readonly XtChain[]
}

/**
 * Makes the chains of a tree of rules about single destination addresses. They are divided by the last byte of the
 * address: first by its low four bits, then by its high ones. ClusterIPs are assigned at random or in sequence, and
 * either way this byte is spread evenly. `levels` is the number of nibbles that the tree matches: 16 chains of entries
 * with one, 256 with two.
 */
function addressTree(place: XtPlace, prefix: string, levels: 1 | 2): Tree {
  const low = NIBBLES.map(nibble => leafName(prefix, nibble, 1))
  const root = chain(
    place,
    prefix,
    waysTo(place.family, low, nibble => [nibble, 0x0f]),
  )
  if (levels === 1) return { root, chains: low.map(name => chain(place, name)) }
  const inner = NIBBLES.flatMap(nibble => {
    const leaves = NIBBLES.map(high => leafName(prefix, (high << 4) | nibble, 2))
    const ways = waysTo(place.family, leaves, high => [high << 4, 0xf0])
    return [...leaves.map(name => chain(place, name)), chain(place, leafName(prefix, nibble, 1), ways)]
  })
  return { root, chains: inner }
}

/** Returns the chain for a rule about `destination`; undefined when the rule is not about one single address. */
function addressLeaf(prefix: string, levels: 1 | 2, destination: XtAddress | undefined): string | undefined {
  if (destination === undefined || destination.inverted) return undefined
  const { ip, mask } = destination
  if (mask !== ALL_BITS.slice(0, ip.length)) return undefined
  return leafName(prefix, ip.charCodeAt(ip.length - 1), levels)
}

const ALL_BITS = '\xff'.repeat(16)
const NIBBLES = Array.from({ length: 16 }, (_, nibble) => nibble)

/**
 * Names a chain: `KUBE-SVC-IP-3F` for addresses whose last byte is 0x3f, `KUBE-SVC-IP-F` for those that end in that
 * digit.
 */
function leafName(prefix: string, byte: number, digits: 1 | 2): string {
  const value = digits === 1 ? byte & 0x0f : byte
  return `${prefix}-${value.toString(16).toUpperCase().padStart(digits, '0')}`
}

function chain(place: XtPlace, name: string, rules: readonly XtRule[] = []): Tree['root'] {
  return { ...place, name, rules, last: [] }
}

/**
 * Makes the rules that lead to chains. They use goto, because a packet that one of the chains does not match
 * matches none of the others.
 */
function waysTo(
  family: NftFamily,
  chains: readonly string[],
  bits: (nibble: number) => readonly [value: number, mask: number],
): readonly XtRule[] {
  const rest = '\0'.repeat(family === 'ip' ? 3 : 15)
  return chains.map((chain, nibble) => {
    const [value, mask] = bits(nibble)
    return {
      destination: {
        ip: rest + String.fromCharCode(value),
        mask: rest + String.fromCharCode(mask),
        inverted: false,
      },
      matches: [],
      target: { kind: 'goto', chain },
    }
  })
}

/** The default range of node ports of API servers; other ports stay in the list. */
const FIRST_PORT = 30_000
const LAST_PORT = 32_767
/** The size of the 16 outer ranges; each has 4 parts. */
const OUTER = 173
const INNER = 44

/**
 * Makes the chains of a tree of rules about single destination ports. They are divided by ranges of ports, because
 * iptables has no mask over ports.
 */
function portTree(place: XtPlace, prefix: string, protocol: PortProtocol): Tree {
  const chain = (range: Range, rules: readonly XtRule[] = []): Tree['root'] => {
    return { ...place, name: rangeName(prefix, range), rules, last: [] }
  }
  const all: Range = { from: FIRST_PORT, to: LAST_PORT }
  const ways = (ranges: readonly Range[]): readonly XtRule[] =>
    ranges.map(range => ({
      protocol: PROTOCOLS[protocol],
      matches: [atPorts(protocol, range)],
      target: { kind: 'goto', chain: rangeName(prefix, range) },
    }))
  const outer = split(all, OUTER)
  const chains = outer.flatMap(range => {
    const inner = split(range, INNER)
    return [...inner.map(leaf => chain(leaf)), chain(range, ways(inner))]
  })
  return { root: chain(all, ways(outer)), chains }
}

function portWay(tree: Tree, protocol: PortProtocol): XtRule {
  return {
    protocol: PROTOCOLS[protocol],
    matches: [atPorts(protocol, { from: FIRST_PORT, to: LAST_PORT })],
    target: { kind: 'jump', chain: tree.root.name },
  }
}

/** Returns the chain for a rule; undefined when the rule is not about one single port of the range. */
function portLeaf(prefix: string, protocol: PortProtocol, rule: XtRule): string | undefined {
  if (rule.protocol?.number !== PROTOCOLS[protocol].number || rule.protocol.inverted) return undefined
  const ports = rule.matches.flatMap(portsOf)[0]
  if (ports === undefined || ports.inverted || ports.from !== ports.to) return undefined
  const port = ports.from
  if (port < FIRST_PORT || port > LAST_PORT) return undefined
  const outer = around({ from: FIRST_PORT, to: LAST_PORT }, OUTER, port)
  return rangeName(prefix, around(outer, INNER, port))
}

interface Range {
  readonly from: number
  readonly to: number
}

function portsOf(match: XtMatch): readonly XtPorts[] {
  if (match.kind !== 'tcp' && match.kind !== 'udp') return []
  return match.destinationPorts === undefined ? [] : [match.destinationPorts]
}

function atPorts(protocol: PortProtocol, { from, to }: Range): XtMatch {
  return { kind: protocol === 'TCP' ? 'tcp' : 'udp', destinationPorts: { from, to, inverted: false } }
}

function split(range: Range, size: number): readonly Range[] {
  const count = Math.ceil((range.to - range.from + 1) / size)
  return Array.from({ length: count }, (_, at) => around(range, size, range.from + at * size))
}

/** Returns the one of equal parts of a range that contains a port. */
function around(range: Range, size: number, port: number): Range {
  const from = port - ((port - range.from) % size)
  return { from, to: Math.min(range.to, from + size - 1) }
}

function rangeName(prefix: string, { from, to }: Range): string {
  return `${prefix}-${from}-${to}`
}
