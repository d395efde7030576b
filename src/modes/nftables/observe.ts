import { append, PersistentMap } from '../../base/collections.ts'
import { type Octets, readU32host } from '../../base/octets.ts'
import type { Element, ElementGroup, NftFamily, Ruleset, Table } from '../../kernel/nft/state.ts'
import {
  GROUP_NODEPORT_IPS,
  GROUP_UNKNOWN,
  LAYOUTS,
  NFT_FAMILIES,
  protocolOfKey,
  tableOf,
} from '../common/tables.ts'
import { parseChain } from './chains.ts'
import {
  CODE_FIRST,
  CODE_MASK,
  type Codes,
  ENDPOINTS_MAPS,
  GROUP_AFFINITY,
  GROUP_DISPATCH,
  hairpinGroup,
  type Ids,
  idOf,
  idsInUse,
  portKeyOf,
} from './layout.ts'
import { type Allocation, EMPTY_STATE, type NftablesState } from './state.ts'

/**
 * Makes a state from what the kernel holds, including objects of other programs. Elements are grouped by the
 * Service that they serve. The numbers in them become the numbering that the next render continues. Elements
 * that cannot be interpreted stay unchanged in groups of their own, so that the diff removes them.
 */
export function adoptRuleset(ruleset: Ruleset): NftablesState {
  const allocations: Record<NftFamily, Allocation> = { ...EMPTY_STATE.allocations }
  const tables: Table[] = []
  for (const family of NFT_FAMILIES) {
    const table = tableOf(ruleset, family)
    if (table === undefined) continue
    const owners = findOwners(table)
    const regrouped = { ...table, elements: regroup(table, owners) }
    tables.push(regrouped)
    allocations[family] = {
      ...EMPTY_STATE.allocations[family],
      ids: owners.ids,
      codes: codesOf(regrouped),
    }
  }
  return { ...EMPTY_STATE, ruleset: { tables }, allocations }
}

/** The Services that the numbers and addresses in a table belong to. */
interface Owners {
  readonly ids: Ids
  /** Group by service-port id. */
  readonly byId: ReadonlyMap<number, string>
  /** Group by address of a frontend. */
  readonly byAddress: ReadonlyMap<Octets, string>
}

/** Reads frontends and node ports: the data of each has the id of the service port, and the comment has the Service. */
function findOwners(table: Table): Owners {
  const byId = new Map<number, string>()
  const byPort = new Map<string, number>()
  const byAddress = new Map<Octets, string>()
  const seen = new Set<number>()
  const { addressLength, model } = LAYOUTS[table.family]
  for (const list of table.elements.values()) {
    for (const { set, key, data, comment } of list) {
      if (set === 'affinity' || set === 'slots' || set === 'ranges' || ENDPOINTS_MAPS.has(set))
        seen.add(idOf(key))
      if ((set !== 'frontends' && set !== 'nodeports') || typeof data !== 'string') continue
      const id = idOf(data)
      const protocol = protocolOfKey(key)
      const group = groupOfComment(comment)
      if (group === undefined || protocol === undefined || id === 0) continue
      if (set === 'frontends') byAddress.set(key.slice(0, addressLength), group)
      const port = portKeyOf(comment, protocol, model)
      // After tampering an id may stand for two ports, or a port may have two ids: the first one counts.
      if (byId.has(id) || byPort.has(port)) continue
      byId.set(id, group)
      byPort.set(port, id)
    }
  }
  for (const id of byId.keys()) seen.delete(id)
  return { ids: idsInUse(byPort, seen), byId, byAddress }
}

/** Gives the group of a comment: `namespace/name:port` and `namespace/name` belong to `namespace/name`. */
function groupOfComment(comment: string): string | undefined {
  const colon = comment.indexOf(':')
  const service = colon < 0 ? comment : comment.slice(0, colon)
  return /^[^/@]+\/[^/]+$/.test(service) ? service : undefined
}

function regroup(table: Table, owners: Owners): PersistentMap<ElementGroup> {
  const groups = new Map<string, Element[]>()
  for (const list of table.elements.values())
    for (const element of list) append(groups, groupOf(element, table, owners), element)
  return PersistentMap.owning<ElementGroup>(groups)
}

function groupOf({ set, key, data, comment }: Element, table: Table, { byId, byAddress }: Owners): string {
  switch (set) {
    case 'frontends':
    case 'nodeports': {
      const id = typeof data === 'string' ? idOf(data) : 0
      return groupOfComment(comment) ?? byId.get(id) ?? `@${id}`
    }
    case 'endpoints-tcp':
    case 'endpoints-udp':
    case 'endpoints-sctp':
    case 'slots':
    case 'ranges':
      return byId.get(idOf(key)) ?? `@${idOf(key)}`
    case 'cluster-ips':
      return byAddress.get(key) ?? GROUP_UNKNOWN
    case 'hairpin':
      return hairpinGroup(key.slice(0, LAYOUTS[table.family].addressLength))
    case 'nodeport-ips':
      return GROUP_NODEPORT_IPS
    case 'dispatch':
      return GROUP_DISPATCH
    case 'affinity':
      return GROUP_AFFINITY
    default:
      return GROUP_UNKNOWN
  }
}

/** Reads the codes of the chains whose names parse. If a chain has several codes, the first one counts. */
function codesOf(table: Table): Codes {
  const codes = new Map<string, number>()
  for (const { set, key, data } of table.elements.get(GROUP_DISPATCH) ?? []) {
    if (set !== 'dispatch' || typeof data !== 'object' || data.chain === undefined) continue
    const code = readU32host(key)
    if (code < CODE_FIRST || code > CODE_MASK) continue
    if (parseChain(data.chain) !== undefined && !codes.has(data.chain)) codes.set(data.chain, code)
  }
  return codes
}
