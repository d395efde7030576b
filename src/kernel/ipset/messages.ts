import type { Batch } from '../../netlink/batch.ts'
import { NLM_F_DUMP, NLM_F_EXCL, NLM_F_REQUEST } from '../../netlink/constants.ts'
import { encodeMessage, writeNfGenMsg } from '../../netlink/message.ts'
import { type AttributeSet, type Attributes, type Fields, writeAttributes } from '../../netlink/schema.ts'
import * as ipset from './constants.ts'
import type { IpsetOperation } from './operation.ts'
import { INDEX, SET, SWAP, TYPE } from './schema.ts'
import { familyNumber } from './set-types.ts'
import type { Ipset, IpsetType } from './state.ts'

/** The protocol version that every kernel with ipsets supports. */
export const IPSET_PROTOCOL_MIN = 6
/** The only version that IPSET_CMD_GET_BYNAME and IPSET_CMD_GET_BYINDEX accept (Linux 4.20). */
const IPSET_PROTOCOL = 7

function messageType(command: number): number {
  return (ipset.NFNL_SUBSYS_IPSET << 8) | command
}

/** Selects the sets of a list, and how much of each the kernel sends. */
export interface ListRequest {
  /** Undefined lists all sets. */
  readonly name?: string
  /** IPSET_FLAG_LIST_*; undefined lists everything. */
  readonly flags?: number
}

export function encodeList({ name, flags }: ListRequest, sequence: number): Uint8Array {
  const head = { command: ipset.IPSET_CMD_LIST, flags: NLM_F_DUMP, sequence }
  return request(head, SET, { protocol: IPSET_PROTOCOL_MIN, name, flags })
}

/** Encodes a query for the kernel's revisions of a type. */
export function encodeType(type: IpsetType, family: Ipset['family'], sequence: number): Uint8Array {
  const values = { protocol: IPSET_PROTOCOL_MIN, type, family: familyNumber(type, family) }
  return request({ command: ipset.IPSET_CMD_TYPE, flags: 0, sequence }, TYPE, values)
}

export function encodeIndexOf(name: string, sequence: number): Uint8Array {
  const head = { command: ipset.IPSET_CMD_GET_BYNAME, flags: 0, sequence }
  return request(head, INDEX, { protocol: IPSET_PROTOCOL, name })
}

export function encodeNameOf(index: number, sequence: number): Uint8Array {
  const head = { command: ipset.IPSET_CMD_GET_BYINDEX, flags: 0, sequence }
  return request(head, INDEX, { protocol: IPSET_PROTOCOL, index })
}

/** An operation that carries no entries. */
export type SetOperation = Exclude<IpsetOperation, { readonly verb: 'add-entries' | 'delete-entries' }>

/**
 * Opens the message of an operation and writes its attributes. `revision` applies to sets to create. NLM_F_EXCL is
 * necessary: without it, the kernel takes a set of the other family for the same one (ip_set_create compares the
 * families of the types, and each type has both). Throws NetlinkError for a value that does not fit.
 */
export function writeSetOperation(batch: Batch<unknown>, operation: SetOperation, revision: number): void {
  const protocol = IPSET_PROTOCOL_MIN
  switch (operation.verb) {
    case 'create': {
      const { name, type, family, maxElements, hashSize } = operation.set
      const shape = type === 'bitmap:port' ? { portFrom: 0, portTo: 0xffff } : { hashSize, maxElements }
      const values = { protocol, name, type, revision, family: familyNumber(type, family), shape }
      openIpsetMessage(batch, ipset.IPSET_CMD_CREATE, NLM_F_EXCL)
      writeAttributes(batch.out, SET, values)
      break
    }
    case 'destroy':
      // Without a name, the command would apply to every set.
      openIpsetMessage(batch, ipset.IPSET_CMD_DESTROY)
      writeAttributes(batch.out, SET, { protocol, name: operation.name })
      break
    case 'swap':
      openIpsetMessage(batch, ipset.IPSET_CMD_SWAP)
      writeAttributes(batch.out, SWAP, { protocol, name: operation.name, with: operation.with })
      break
  }
}

/** Begins an ipset message; `command` is one of IPSET_CMD_*. */
export function openIpsetMessage(batch: Batch<unknown>, command: number, flags = 0): void {
  batch.open(messageType(command), flags)
  writeNfGenMsg(batch.out.out, HEAD)
}

const HEAD = { family: ipset.NFPROTO_UNSPEC, resourceId: 0 } as const

interface Head {
  /** IPSET_CMD_*. */
  readonly command: number
  readonly flags: number
  readonly sequence: number
}

function request<F extends Fields>(
  { command, flags, sequence }: Head,
  table: AttributeSet<F>,
  values: Attributes<F>,
): Uint8Array {
  return encodeMessage({ type: messageType(command), flags: NLM_F_REQUEST | flags, sequence }, out => {
    writeNfGenMsg(out.out, HEAD)
    writeAttributes(out, table, values)
  })
}
