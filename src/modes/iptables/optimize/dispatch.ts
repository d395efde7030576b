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
  /** The list is divided only in large clusters: in others, dividing costs each packet more than it saves. */
  readonly onlyLarge: boolean
}

type Division =
  /**
   * By the last byte of the address: first by its low four bits, then by its high ones. ClusterIPs are assigned at
   * random or in sequence, and either way this byte is spread evenly. One level has 16 chains of entries, two have 256.
   */
  | { readonly kind: 'address'; readonly prefix: string; readonly levels: 1 | 2 }
  /** By ranges of ports, because iptables has no mask over ports. */
  | { readonly kind: 'port'; readonly prefix: string; readonly protocol: PortProtocol }

type PortProtocol = Extract<Protocol, 'TCP' | 'UDP'>

export function listsOf(names: ChainNames): readonly List[] {
  const { natAddresses, natPorts, services, externalServices, proxyFirewall, healthPorts } = dispatchNames(
    names.prefix,
  )
  const address = (prefix: string, levels: 1 | 2): Division => ({ kind: 'address', prefix, levels })
  const port = (prefix: string, protocol: PortProtocol): Division => ({ kind: 'port', prefix, protocol })
  const nat = (chain: string, by: readonly Division[]): List => ({
    table: 'nat',
    chain,
    by,
    onlyLarge: false,
  })
  const filter = (chain: string, by: Division): List => ({
    table: 'filter',
    chain,
    by: [by],
    onlyLarge: true,
  })
  return [
    nat(names.services, [address(natAddresses, 2)]),
    nat(names.nodePorts, [port(natPorts.TCP, 'TCP'), port(natPorts.UDP, 'UDP')]),
    filter(names.services, address(services, 1)),
    filter(names.externalServices, address(externalServices, 1)),
    filter(names.proxyFirewall, address(proxyFirewall, 1)),
    filter(names.nodePorts, port(healthPorts, 'TCP')),
  ]
}

interface Dividing {
  readonly lists: readonly List[]
  /** Lists that are short in most clusters are divided, too. */
  readonly large: boolean
}

/** Moves entries into the chains in which packets meet them. Of entries that differ by their comments, the first stays. */
export function placeEntries(entries: readonly XtEntry[], statics: Dividing): readonly XtEntry[] {
  const placed = new Map<string, XtEntry>()
  for (const entry of entries) {
    const { family, table, chain, rule } = entry
    const leaf = divisionsOf({ table, name: chain }, statics)
      .map(division => leafOf(division, rule))
      .find(name => name !== undefined)
    const at = leaf === undefined ? entry : { ...entry, chain: leaf }
    const matches = rule.matches.filter(({ kind }) => kind !== 'comment')
    const key = `${family} ${table} ${at.chain} ${JSON.stringify({ ...rule, matches })}`
    if (!placed.has(key)) placed.set(key, at)
  }
  return [...placed.values()]
}

/** Adds the chains among which the lists of the fixed chains are divided, and the rules that lead there. */
export function divideFixed(chains: readonly XtChain[], statics: Dividing): readonly XtChain[] {
  const fixed = chains.map(chain => {
    const ways = divisionsOf(chain, statics).map((division): XtRule => {
      const { match, name } = treeOf(division, chain.family)
      return { ...match, target: jump(name) }
    })
    return ways.length === 0 ? chain : { ...chain, rules: [...chain.rules, ...ways] }
  })
  return [...fixed, ...dividedChains(statics)]
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

/** Makes the chains that entries are divided among, and the chains that lead to them. */
function dividedChains(statics: Dividing): readonly XtChain[] {
  return NFT_FAMILIES.flatMap(family =>
    statics.lists.flatMap(({ table, chain }) =>
      divisionsOf({ table, name: chain }, statics).flatMap(division =>
        chainsOf(treeOf(division, family), { family, table }),
      ),
    ),
  )
}

const NOT_DIVIDED: readonly Division[] = []

function divisionsOf(at: Pick<XtChain, 'table' | 'name'>, { lists, large }: Dividing): readonly Division[] {
  const list = lists.find(({ table, chain }) => table === at.table && chain === at.name)
  return list === undefined || (list.onlyLarge && !large) ? NOT_DIVIDED : list.by
}

/** A chain that entries are divided among; with branches, it sends a packet to the only one that may match it. */
interface Branch {
  readonly name: string
  readonly match: Omit<XtRule, 'target'>
  readonly below: readonly Branch[]
}

/** Gives the chains of a tree, the root last. By goto, a packet that one branch does not match meets no other one. */
function chainsOf({ name, below }: Branch, place: XtPlace): readonly XtChain[] {
  const rules = below.map(({ match, name: chain }): XtRule => ({ ...match, target: { kind: 'goto', chain } }))
  return [...below.flatMap(branch => chainsOf(branch, place)), { ...place, name, rules, last: [] }]
}

function treeOf(division: Division, family: NftFamily): Branch {
  return division.kind === 'address' ? addressTree(division, family) : portTree(division)
}

/** Returns the chain for a rule; undefined when the rule is not about one single address, or port of the range. */
function leafOf(division: Division, { destination, protocol, matches }: XtRule): string | undefined {
  if (division.kind === 'address') {
    if (destination === undefined || !isSingle(destination)) return undefined
    return leafName(division.prefix, destination.ip.charCodeAt(destination.ip.length - 1), division.levels)
  }
  const [ports] = matches.flatMap(destinationPorts)
  if (protocol?.number !== PROTOCOLS[division.protocol].number || protocol.inverted) return undefined
  if (ports === undefined || ports.inverted || ports.from !== ports.to) return undefined
  if (ports.from < ALL.from || ports.from > ALL.to) return undefined
  return rangeName(division.prefix, around(around(ALL, OUTER, ports.from), INNER, ports.from))
}

/** Tests whether the match includes exactly one address. */
export function isSingle({ mask, inverted }: XtAddress): boolean {
  return !inverted && /^\xff+$/.test(mask)
}

export function destinationPorts(match: XtMatch): readonly XtPorts[] {
  const hasPorts = match.kind === 'tcp' || match.kind === 'udp'
  return hasPorts && match.destinationPorts !== undefined ? [match.destinationPorts] : []
}

const NIBBLES = Array.from({ length: 16 }, (_, nibble) => nibble)

function addressTree({ prefix, levels }: Division & { kind: 'address' }, family: NftFamily): Branch {
  const rest = '\0'.repeat(family === 'ip' ? 3 : 15)
  const branch = (
    name: string,
    bits: readonly [value: number, mask: number],
    below: readonly Branch[],
  ): Branch => {
    const [ip = '', mask = ''] = bits.map(byte => rest + String.fromCharCode(byte))
    return { name, match: { destination: { ip, mask, inverted: false }, matches: [] }, below }
  }
  const inner = (low: number): readonly Branch[] =>
    NIBBLES.map(high => branch(leafName(prefix, (high << 4) | low, 2), [high << 4, 0xf0], []))
  return {
    name: prefix,
    match: { matches: NO_MATCHES },
    below: NIBBLES.map(low => branch(leafName(prefix, low, 1), [low, 0x0f], levels === 1 ? [] : inner(low))),
  }
}

/** Names a chain by the last byte of its addresses: `KUBE-SVC-IP-3F`, or `KUBE-SVC-IP-F` by its last digit. */
function leafName(prefix: string, byte: number, digits: 1 | 2): string {
  const value = digits === 1 ? byte & 0x0f : byte
  return `${prefix}-${value.toString(16).toUpperCase().padStart(digits, '0')}`
}

interface Range {
  readonly from: number
  readonly to: number
}

/** The default range of node ports of API servers; other ports stay in the list. */
const ALL: Range = { from: 30_000, to: 32_767 }
/** The size of the 16 outer ranges; each has 4 parts. */
const OUTER = 173
const INNER = 44

function portTree({ prefix, protocol }: Division & { kind: 'port' }): Branch {
  const kind = protocol === 'TCP' ? 'tcp' : 'udp'
  const branch = (range: Range, below: readonly Branch[]): Branch => {
    const matches: readonly XtMatch[] = [{ kind, destinationPorts: { ...range, inverted: false } }]
    return { name: rangeName(prefix, range), match: { protocol: PROTOCOLS[protocol], matches }, below }
  }
  const outer = split(ALL, OUTER)
  const inner = (range: Range) => split(range, INNER).map(leaf => branch(leaf, []))
  return branch(
    ALL,
    outer.map(range => branch(range, inner(range))),
  )
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
