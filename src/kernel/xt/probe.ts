import type { Connection } from '../../netlink/connection.ts'
import { hasXtExtension } from '../nft/compat.ts'
import { NFPROTO_IPV4, NFPROTO_IPV6 } from '../nft/constants.ts'
import type { NftFamily } from '../nft/state.ts'
import * as structs from './structs.ts'

/** An xtables match or target that compileRule writes, and what depends on it. */
interface XtExtension {
  readonly kind: 'match' | 'target'
  readonly name: string
  readonly revision: number
  readonly use: XtUse
}

/** `services`: every node needs it. The others are needed only by some Services, modes or options. */
export type XtUse = 'services' | 'affinity' | 'sctp' | 'ipvs' | 'counters'

export interface MissingExtension extends XtExtension {
  readonly family: NftFamily
}

type Named = Pick<XtExtension, 'name' | 'revision'>

function match(use: XtUse, { name, revision }: Named): XtExtension {
  return { kind: 'match', name, revision, use }
}

function target(use: XtUse, { name, revision }: Named): XtExtension {
  return { kind: 'target', name, revision, use }
}

/** The extensions in the revisions that kprobe writes; marks, ports and verdicts need only nf_tables. */
export const XT_EXTENSIONS: readonly XtExtension[] = [
  match('services', structs.COMMENT),
  match('services', structs.CONNTRACK),
  match('services', structs.STATISTIC),
  match('services', structs.ADDRTYPE),
  match('services', structs.TCP),
  match('services', structs.UDP),
  target('services', structs.REJECT),
  target('services', structs.MARK),
  target('services', structs.MASQUERADE_V4),
  target('services', structs.DNAT),
  match('affinity', structs.RECENT),
  match('sctp', structs.SCTP),
  match('ipvs', { name: 'set', revision: 4 }),
  match('ipvs', structs.PHYSDEV),
  match('ipvs', structs.IPVS),
  match('counters', structs.NFACCT_V1),
]

const FAMILIES = { ip: NFPROTO_IPV4, ip6: NFPROTO_IPV6 } as const

/**
 * Returns the extensions that this kernel lacks, by family; the kernel loads the modules that it has. Throws
 * NetlinkError when the kernel gives no clear answer.
 */
export function probeXt(
  connection: Connection,
  families: readonly NftFamily[] = ['ip', 'ip6'],
): readonly MissingExtension[] {
  return families.flatMap(family =>
    XT_EXTENSIONS.filter(one => !hasXtExtension(connection, { ...one, family: FAMILIES[family] })).map(
      one => ({
        ...one,
        family,
      }),
    ),
  )
}

/** Formats `match recent (revision 1) for ip and ip6, target REJECT (revision 0) for ip6`; empty for none. */
export function missingText(missing: readonly MissingExtension[]): string {
  const families = new Map<string, NftFamily[]>()
  for (const { kind, name, revision, family } of missing) {
    const words = `${kind} ${name} (revision ${revision})`
    families.set(words, [...(families.get(words) ?? []), family])
  }
  return [...families].map(([words, of]) => `${words} for ${of.join(' and ')}`).join(', ')
}
