import type { Family } from '../../base/ip.ts'
import {
  ICMP_PORT_UNREACH,
  ICMPV6_PORT_UNREACH,
  NFPROTO_IPV4,
  NFPROTO_IPV6,
} from '../../kernel/nft/constants.ts'
import { TYPE_IP6ADDR, TYPE_IPADDR } from '../../kernel/nft/datatypes.ts'
import type { NftFamily, Ruleset, Table } from '../../kernel/nft/state.ts'

/** The differences between the tables of the two families. */
export interface FamilyLayout {
  readonly family: NftFamily
  readonly model: Family
  readonly nfproto: number
  /** Bytes. */
  readonly addressLength: number
  /** The number of 32-bit registers that an address takes. */
  readonly addressRegs: number
  readonly addressType: number
  /** Byte offsets in the network header. */
  readonly sourceOffset: number
  readonly destinationOffset: number
  readonly rejectCode: number
}

const IPV4: FamilyLayout = {
  family: 'ip',
  model: 'IPv4',
  nfproto: NFPROTO_IPV4,
  addressLength: 4,
  addressRegs: 1,
  addressType: TYPE_IPADDR,
  sourceOffset: 12,
  destinationOffset: 16,
  rejectCode: ICMP_PORT_UNREACH,
}

const IPV6: FamilyLayout = {
  family: 'ip6',
  model: 'IPv6',
  nfproto: NFPROTO_IPV6,
  addressLength: 16,
  addressRegs: 4,
  addressType: TYPE_IP6ADDR,
  sourceOffset: 8,
  destinationOffset: 24,
  rejectCode: ICMPV6_PORT_UNREACH,
}

/** The layout of each family. */
export const LAYOUTS: Readonly<Record<NftFamily, FamilyLayout>> = { ip: IPV4, ip6: IPV6 }
/** The families of the tables that contain Services. */
export const NFT_FAMILIES: readonly NftFamily[] = ['ip', 'ip6']

export function tableOf(ruleset: Ruleset, family: NftFamily): Table | undefined {
  return ruleset.tables.find(table => table.family === family)
}

export function forFamilies<T>(make: (family: NftFamily) => T): Readonly<Record<NftFamily, T>> {
  return { ip: make('ip'), ip6: make('ip6') }
}
