import type { NftSet } from '../../kernel/nft/state.ts'
import {
  DESTINATION,
  DESTINATION_PORT,
  PROTOCOL,
  SOURCE,
  type TypeofField,
  typedSet,
} from '../../kernel/nft/userdata.ts'
import type { FamilyLayout } from '../common/tables.ts'

const REDIRECTS = ['inside', 'nodeports-inside', 'frontends', 'nodeports'] as const
/** A map whose data is the address and port of a listener. */
export type RedirectMap = (typeof REDIRECTS)[number]
export const REDIRECT_MAPS: ReadonlySet<string> = new Set(REDIRECTS)

/** The sets of every table. Beside them there is `ranges-N` for each length N of source ranges in use. */
export const FIXED_SETS = [
  'cluster-ips',
  'nodeport-ips',
  'guarded',
  'verdicts',
  'nodeport-verdicts',
  ...REDIRECTS,
  'listeners',
] as const
type FixedSetName = (typeof FIXED_SETS)[number]

/** Names the set of source ranges of one length. */
export function rangesSet(bits: number): string {
  return `ranges-${bits}`
}

/** Gives the length of the ranges in a set; undefined for other sets. */
export function rangeBits(set: string): number | undefined {
  const match = /^ranges-(\d+)$/.exec(set)
  return match === null ? undefined : Number(match[1])
}

/** Sets are declared without a size. The kernel lets them grow, so that no set is ever replaced. */
const SIZE = 0

export function declareFixedSet(name: FixedSetName, layout: FamilyLayout): NftSet {
  const destination = DESTINATION[layout.family]
  const place = { size: SIZE, key: placeFields(layout) }
  const nodePort = { size: SIZE, key: [PROTOCOL, DESTINATION_PORT] }
  const listener = [destination, DESTINATION_PORT]
  switch (name) {
    case 'cluster-ips':
    case 'nodeport-ips':
      return typedSet(name, { size: SIZE, key: [destination] })
    case 'guarded':
    case 'listeners':
      return typedSet(name, place)
    case 'verdicts':
      return typedSet(name, { ...place, data: 'verdict' })
    case 'nodeport-verdicts':
      return typedSet(name, { ...nodePort, data: 'verdict' })
    case 'frontends':
    case 'inside':
      return typedSet(name, { ...place, data: listener, bare: true })
    case 'nodeports':
    case 'nodeports-inside':
      return typedSet(name, { ...nodePort, data: listener, bare: true })
  }
}

export function declareRanges(bits: number, layout: FamilyLayout): NftSet {
  const key = [...placeFields(layout), SOURCE[layout.family]]
  return typedSet(rangesSet(bits), { size: SIZE, key })
}

function placeFields({ family }: FamilyLayout): readonly TypeofField[] {
  return [DESTINATION[family], PROTOCOL, DESTINATION_PORT]
}

export const CHAIN_NODE_PORTS = 'node-ports'
export const CHAIN_INPUT = 'filter-input'

/** The comment suffix of a place that leads only to endpoints of this node: `ns/web:http local`. */
export const LOCAL_SUFFIX = ' local'
