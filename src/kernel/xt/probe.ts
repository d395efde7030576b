import { append } from '../../base/collections.ts'
import { string, u32be } from '../../netlink/codecs.ts'
import type { Connection } from '../../netlink/connection.ts'
import { NLM_F_REQUEST } from '../../netlink/constants.ts'
import { NetlinkError } from '../../netlink/errors.ts'
import { encodeMessage, writeNfGenMsg } from '../../netlink/message.ts'
import { attributeSet, writeAttributes } from '../../netlink/schema.ts'
import type { NftClient } from '../nft/client.ts'
import { NFPROTO_IPV4, NFPROTO_IPV6 } from '../nft/constants.ts'
import type { NftFamily } from '../nft/state.ts'
import type { Operation, Transaction } from '../nft/transaction.ts'
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

interface ProbeResult {
  readonly works: boolean
  /** The kernel's error when it rejects the transaction. */
  readonly reason: string | undefined
}

/**
 * Tests whether the kernel would accept a transaction. It sends it with one more operation that must fail: the kernel
 * checks everything, loads the modules it needs, and then undoes all of it. Nothing is committed, as with `nft
 * --check`.
 */
export async function probe(client: NftClient, transaction: Transaction): Promise<ProbeResult> {
  const [first] = transaction
  if (first === undefined) return { works: true, reason: undefined }
  const spoiler = impossible(first.family)
  const result = await client.commit([...transaction, spoiler])
  const refused = result.failures.find(({ operation }) => operation !== spoiler)
  if (refused !== undefined) return { works: false, reason: refused.error.message }
  const isSpoiled = result.failures.some(({ operation, code }) => operation === spoiler && code === 'ENOENT')
  return isSpoiled
    ? { works: true, reason: undefined }
    : { works: false, reason: `the kernel gave no result (${result.outcome})` }
}

/** Fails with ENOENT, because no table has this name. */
function impossible(family: NftFamily): Operation {
  return { verb: 'delete-table', family, table: 'kprobe-probe-that-does-not-exist' }
}

/** linux/netfilter/nf_tables_compat.h and nfnetlink.h. */
const NFNL_SUBSYS_NFT_COMPAT = 11
const NFNL_MSG_COMPAT_GET = 0

const COMPAT = attributeSet({ name: [1, string], revision: [2, u32be], type: [3, u32be] })
const COMPAT_TYPES = { match: 0, target: 1 } as const

interface AskedExtension {
  readonly kind?: keyof typeof COMPAT_TYPES
  readonly name: string
  readonly revision: number
  readonly family: number
}

/**
 * Returns whether nf_tables rules can use a match or target of xtables in this revision. The kernel loads existing
 * modules for it. Throws NetlinkError when the kernel gives no clear answer.
 */
export function hasXtExtension(connection: Connection, extension: AskedExtension): boolean {
  let answered = false
  try {
    connection.roundTrip({
      operation: 'find',
      object: `${extension.kind ?? 'match'} ${extension.name} of xtables`,
      build: sequence => compatRequest(extension, sequence),
      onMessage: () => {
        answered = true
      },
    })
  } catch (error) {
    // EINVAL: the kernel has no nft_compat. ENOENT and EPROTONOSUPPORT: it lacks this name, or this revision.
    const isAbsent = error instanceof NetlinkError && ABSENT.has(error.code)
    if (!isAbsent) throw error
  }
  return answered
}

const ABSENT: ReadonlySet<string> = new Set(['EINVAL', 'ENOENT', 'EPROTONOSUPPORT', 'EOPNOTSUPP'])

export function compatRequest(extension: AskedExtension, sequence: number): Uint8Array {
  const { kind = 'match', name, revision, family } = extension
  const type = (NFNL_SUBSYS_NFT_COMPAT << 8) | NFNL_MSG_COMPAT_GET
  return encodeMessage({ type, flags: NLM_F_REQUEST, sequence }, out => {
    writeNfGenMsg(out.out, { family, resourceId: 0 })
    writeAttributes(out, COMPAT, { name, revision, type: COMPAT_TYPES[kind] })
  })
}
