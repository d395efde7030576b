import type { Connection } from '../../netlink/connection.ts'
import { NetlinkError } from '../../netlink/errors.ts'
import { IPSET_FLAG_LIST_HEADER } from './constants.ts'
import { appendEntries, decodeHeader, decodeSet, type Foreign } from './decode.ts'
import { encodeList, type ListRequest } from './messages.ts'
import type { IpsetEntry, IpsetHeader, IpsetListing } from './state.ts'

/** What the kernel says of all sets, or of one that may not exist. Throws NetlinkError. */
export async function readHeaders(
  connection: Connection,
  name?: string,
): Promise<readonly (IpsetHeader | Foreign)[]> {
  const headers: (IpsetHeader | Foreign)[] = []
  const request = { flags: IPSET_FLAG_LIST_HEADER, ...(name === undefined ? {} : { name }) }
  await listSets(connection, request, (view, message) => headers.push(decodeHeader(view, message)))
  return headers
}

export function isForeign(header: IpsetHeader | Foreign): header is Foreign {
  return 'foreign' in header
}

/** A whole set; undefined when there is none of this name, or none of ours. Throws NetlinkError. */
export async function readSet(connection: Connection, name: string): Promise<IpsetListing | undefined> {
  let header: IpsetHeader | Foreign | undefined
  const entries: IpsetEntry[] = []
  await listSets(connection, { name }, (view, message) => {
    // Only the first message tells what the set is.
    header ??= decodeHeader(view, message)
    if (!isForeign(header)) appendEntries(entries, header.set.type, decodeSet(view, message))
  })
  return header === undefined || isForeign(header) ? undefined : { ...header, entries }
}

type OnMessage = Parameters<Connection['dump']>[0]['onMessage']

async function listSets(connection: Connection, request: ListRequest, onMessage: OnMessage): Promise<void> {
  try {
    await connection.dump({
      operation: 'list',
      object: request.name === undefined ? 'ipsets' : `ipset ${request.name}`,
      build: sequence => encodeList(request, sequence),
      onMessage,
    })
  } catch (error) {
    const isMissing = error instanceof NetlinkError && error.code === 'ENOENT' && request.name !== undefined
    if (!isMissing) throw error
  }
}
