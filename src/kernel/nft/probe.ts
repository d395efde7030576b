import { string, u32be } from '../../netlink/attribute.ts'
import type { Connection } from '../../netlink/connection.ts'
import { NLM_F_REQUEST } from '../../netlink/constants.ts'
import { NetlinkError } from '../../netlink/errors.ts'
import { encodeMessage, writeNfGenMsg } from '../../netlink/message.ts'
import { attributeSet, writeAttributes } from '../../netlink/schema.ts'
import type { NftClient } from './client.ts'
import type { NftFamily } from './state.ts'
import type { Operation, Transaction } from './transaction.ts'

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

/** A match or target of xtables. */
interface XtExtension {
  readonly kind?: keyof typeof COMPAT_TYPES
  readonly name: string
  readonly revision: number
  /** AF_INET or AF_INET6. */
  readonly family: number
}

/**
 * Returns whether nf_tables rules can use a match or target of xtables in this revision. The kernel loads existing
 * modules for it. Throws NetlinkError when the kernel gives no clear answer.
 */
export function hasXtExtension(connection: Connection, extension: XtExtension): boolean {
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

export function compatRequest(extension: XtExtension, sequence: number): Uint8Array {
  const { kind = 'match', name, revision, family } = extension
  const type = (NFNL_SUBSYS_NFT_COMPAT << 8) | NFNL_MSG_COMPAT_GET
  return encodeMessage({ type, flags: NLM_F_REQUEST, sequence }, out => {
    writeNfGenMsg(out.out, { family, resourceId: 0 })
    writeAttributes(out, COMPAT, { name, revision, type: COMPAT_TYPES[kind] })
  })
}
