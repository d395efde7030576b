import type { Octets } from '../../base/octets.ts'
import type { Connection } from '../../netlink/connection.ts'
import { NFT_MSG_GETSETELEM } from './constants.ts'
import { decodeCounters } from './decode.ts'
import { dumpRequest } from './dump.ts'
import { SET_ELEMENTS } from './schema.ts'
import type { TableName } from './state.ts'

/**
 * Reads the packet count of each element of a counted set while the dump arrives, without collecting it. Elements
 * that come or go meanwhile may be missing. Returns false when the kernel reports an inconsistent dump.
 */
export function readCounters(
  connection: Connection,
  { table, set }: { readonly table: TableName; readonly set: string },
  onCounter: (key: Octets, packets: bigint) => void,
): Promise<boolean> {
  const filter = { table: table.name, set }
  const dump = {
    type: NFT_MSG_GETSETELEM,
    what: `counters of ${set} in table`,
    table,
    set: SET_ELEMENTS,
    filter,
  }
  const request = dumpRequest(dump, (view, message) => {
    for (const [key, packets] of decodeCounters(view, message).value) onCounter(key, packets)
  })
  return connection.dump(request)
}
