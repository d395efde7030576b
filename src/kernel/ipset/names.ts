import type { Connection } from '../../netlink/connection.ts'
import { IPSET_FLAG_LIST_SETNAME } from './constants.ts'
import { decodeName } from './decode.ts'
import { encodeList } from './messages.ts'
import { isAbsent } from './revisions.ts'

/** Names of the ipsets of this network namespace; none where the kernel has no such thing. Throws NetlinkError. */
export async function listIpsetNames(connection: Connection): Promise<readonly string[]> {
  const names = new Set<string>()
  try {
    await connection.dump({
      operation: 'list',
      object: 'names of ipsets',
      build: listRequest,
      onMessage: (view, message) => names.add(decodeName(view, message)),
    })
  } catch (error) {
    if (!isAbsent(error)) throw error
  }
  names.delete('')
  return [...names]
}

/** IPSET_CMD_LIST for the names alone: one short message a set. */
export function listRequest(sequence: number): Uint8Array {
  return encodeList({ flags: IPSET_FLAG_LIST_SETNAME }, sequence)
}
