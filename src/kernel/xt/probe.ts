import { append } from '../../base/collections.ts'
import type { Connection } from '../../netlink/connection.ts'
import { NFPROTO_IPV4, NFPROTO_IPV6 } from '../nft/constants.ts'
import { hasXtExtension } from '../nft/probe.ts'
import type { NftFamily } from '../nft/state.ts'
import * as structs from './struct.ts'

/** An xtables match or target that compileRule writes, and what depends on it. */
interface XtExtension {
  readonly kind: 'match' | 'target'
  readonly name: string
  readonly revision: number
  readonly use: XtUse
  /** The kernel options that provide it, beside CONFIG_NFT_COMPAT. */
  readonly config: string
}

/** `services`: every node needs it. The others are needed only by some Services, modes or options. */
export type XtUse = 'services' | 'affinity' | 'sctp' | 'ipvs' | 'counters'

export interface MissingExtension extends XtExtension {
  readonly family: NftFamily
}

type Named = Pick<XtExtension, 'name' | 'revision'>

function match(use: XtUse, { name, revision }: Named, config: string): XtExtension {
  return { kind: 'match', name, revision, use, config: `CONFIG_NETFILTER_${config}` }
}

function target({ name, revision }: Named, config: string): XtExtension {
  return { kind: 'target', name, revision, use: 'services', config }
}

/** The extensions in the revisions that kprobe writes; marks, ports and verdicts need only nf_tables. */
export const XT_EXTENSIONS: readonly XtExtension[] = [
  match('services', structs.COMMENT, 'XT_MATCH_COMMENT'),
  match('services', structs.CONNTRACK, 'XT_MATCH_CONNTRACK'),
  match('services', structs.STATISTIC, 'XT_MATCH_STATISTIC'),
  match('services', structs.ADDRTYPE, 'XT_MATCH_ADDRTYPE'),
  match('services', structs.TCP, 'XTABLES'),
  match('services', structs.UDP, 'XTABLES'),
  target(structs.REJECT, 'CONFIG_IP_NF_TARGET_REJECT, CONFIG_IP6_NF_TARGET_REJECT'),
  target(structs.MARK, 'CONFIG_NETFILTER_XT_TARGET_MARK'),
  target(structs.MASQUERADE_V4, 'CONFIG_NETFILTER_XT_TARGET_MASQUERADE'),
  target(structs.DNAT, 'CONFIG_NETFILTER_XT_NAT'),
  match('affinity', structs.RECENT, 'XT_MATCH_RECENT'),
  match('sctp', structs.SCTP, 'XT_MATCH_SCTP'),
  match('ipvs', { name: 'set', revision: 4 }, 'XT_SET'),
  match('ipvs', structs.PHYSDEV, 'XT_MATCH_PHYSDEV'),
  match('ipvs', structs.IPVS, 'XT_MATCH_IPVS'),
  match('counters', structs.NFACCT_V1, 'XT_MATCH_NFACCT'),
]

const FAMILIES: readonly (readonly [NftFamily, number])[] = [
  ['ip', NFPROTO_IPV4],
  ['ip6', NFPROTO_IPV6],
]

/**
 * Returns the extensions that this kernel lacks, by family; the kernel loads the modules that it has. Throws
 * NetlinkError when the kernel gives no clear answer.
 */
export function probeXt(connection: Connection): readonly MissingExtension[] {
  return FAMILIES.flatMap(([family, nfproto]) =>
    XT_EXTENSIONS.filter(one => !hasXtExtension(connection, { ...one, family: nfproto })).map(one => {
      return { ...one, family }
    }),
  )
}

/** Formats `match recent (revision 1) for ip and ip6: CONFIG_...`; empty for none. */
export function missingText(missing: readonly MissingExtension[]): string {
  if (missing.length === 0) return ''
  const families = new Map<string, NftFamily[]>()
  for (const { kind, name, revision, family } of missing)
    append(families, `${kind} ${name} (revision ${revision})`, family)
  const words = [...families].map(([extension, of]) => `${extension} for ${of.join(' and ')}`)
  const options = new Set(['CONFIG_NFT_COMPAT', ...missing.map(({ config }) => config)])
  return `${words.join(', ')}: ${[...options].join(', ')}`
}
