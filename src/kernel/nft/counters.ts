import type { Octets } from '../../base/octets.ts'
import type { Connection } from '../../netlink/connection.ts'
import { NLM_F_DUMP } from '../../netlink/constants.ts'
import { writeAttributes } from '../../netlink/schema.ts'
import { NFT_MSG_GETSETELEM } from './constants.ts'
import { decodeCounters } from './decode.ts'
import { familyNumber } from './encode.ts'
import { getRequest } from './get-request.ts'
import type { TableName } from './list.ts'
import { SET_ELEMENTS } from './schema.ts'

/**
 * Reads the packet count of each element of a counted set while the dump arrives, without collecting it. Elements
 * that come or go meanwhile may be missing. Returns false when the kernel reports an inconsistent dump.
 */
export function readCounters(
  connection: Connection,
  { table, set }: { readonly table: TableName; readonly set: string },
  onCounter: (key: Octets, packets: bigint) => void,
): Promise<boolean> {
  return connection.dump({
    operation: 'list',
    object: `counters of ${set} in table ${table.family} ${table.name}`,
    build: sequence =>
      getRequest(
        { type: NFT_MSG_GETSETELEM, flags: NLM_F_DUMP, family: familyNumber(table.family), sequence },
        out => writeAttributes(out, SET_ELEMENTS, { table: table.name, set }),
      ),
    onMessage(view, message) {
      for (const [key, packets] of decodeCounters(view, message).value) onCounter(key, packets)
    },
  })
}
