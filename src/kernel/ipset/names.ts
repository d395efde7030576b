import type { Connection } from '../../netlink/connection.ts'
import { IPSET_FLAG_LIST_SETNAME } from './constants.ts'
import { decodeName } from './decode.ts'
import { encodeList } from './messages.ts'
import { isAbsent } from './revisions.ts'

/** Lists the names of all ipsets; none where the kernel has no ipsets. Throws NetlinkError. */
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

/** Encodes IPSET_CMD_LIST for names only: one short message per set. */
export function listRequest(sequence: number): Uint8Array {
  return encodeList({ flags: IPSET_FLAG_LIST_SETNAME }, sequence)
}
