import { AttributeWriter } from '../../netlink/attribute.ts'
import { ByteWriter } from '../../netlink/bytes.ts'
import { NLM_F_DUMP, NLM_F_EXCL, NLM_F_REQUEST } from '../../netlink/constants.ts'
import { closeMessage, openMessage, writeNfGenMsg } from '../../netlink/message.ts'
import { type AttributeSet, type Attributes, type Fields, writeAttributes } from '../../netlink/schema.ts'
import * as ipset from './constants.ts'
import type { IpsetOperation } from './operation.ts'
import { INDEX, SET, SWAP, TYPE } from './schema.ts'
import { familyNumber } from './set-types.ts'
import type { Ipset, IpsetType } from './state.ts'

/** What every kernel with ipsets speaks. */
export const IPSET_PROTOCOL_MIN = 6
/** IPSET_CMD_GET_BYNAME and IPSET_CMD_GET_BYINDEX take nothing else (Linux 4.20). */
export const IPSET_PROTOCOL = 7

export function messageType(command: number): number {
  return (ipset.NFNL_SUBSYS_IPSET << 8) | command
}

/** Which sets a list is about, and how much of each it tells. */
export interface ListRequest {
  /** All, without it. */
  readonly name?: string
  /** IPSET_FLAG_LIST_*; everything, without it. */
  readonly flags?: number
}

export function encodeList({ name, flags }: ListRequest, sequence: number): Uint8Array {
  const head = { command: ipset.IPSET_CMD_LIST, flags: NLM_F_DUMP, sequence }
  return request(head, SET, { protocol: IPSET_PROTOCOL_MIN, name, flags })
}

/** Asks which revisions of a type the kernel has. */
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

/** What does not carry entries. */
export type SetOperation = Exclude<IpsetOperation, { readonly verb: 'add-entries' | 'delete-entries' }>

/**
 * Appends the message of an operation. `revision` is for sets to create. Sets are made with NLM_F_EXCL: without it, the
 * kernel takes one of the other family for the same (ip_set_create compares the families of the types, which have both).
 * Throws NetlinkError for what does not fit.
 */
export function writeSetOperation(
  out: AttributeWriter,
  operation: SetOperation,
  { revision, sequence }: { readonly revision: number; readonly sequence: number },
): void {
  const protocol = IPSET_PROTOCOL_MIN
  switch (operation.verb) {
    case 'create': {
      const { name, type, family, maxElements, hashSize } = operation.set
      const shape = type === 'bitmap:port' ? { portFrom: 0, portTo: 0xffff } : { hashSize, maxElements }
      const values = { protocol, name, type, revision, family: familyNumber(type, family), shape }
      write(out, { command: ipset.IPSET_CMD_CREATE, flags: NLM_F_EXCL, sequence }, { table: SET, values })
      break
    }
    case 'destroy':
    case 'flush': {
      // Without a name, these are about every set there is.
      const { name, verb } = operation
      const command = verb === 'destroy' ? ipset.IPSET_CMD_DESTROY : ipset.IPSET_CMD_FLUSH
      write(out, { command, flags: 0, sequence }, { table: SET, values: { protocol, name } })
      break
    }
    case 'swap': {
      const values = { protocol, name: operation.name, with: operation.with }
      write(out, { command: ipset.IPSET_CMD_SWAP, flags: 0, sequence }, { table: SWAP, values })
      break
    }
  }
}

interface Head {
  /** IPSET_CMD_*. */
  readonly command: number
  readonly flags: number
  readonly sequence: number
}

/** Begins a message of ipset; the result is what closeMessage wants. */
export function openIpsetMessage(out: ByteWriter, { command, flags, sequence }: Head): number {
  const start = openMessage(out, { type: messageType(command), flags: NLM_F_REQUEST | flags, sequence })
  writeNfGenMsg(out, { family: ipset.NFPROTO_UNSPEC, resourceId: 0 })
  return start
}

function write<F extends Fields>(
  out: AttributeWriter,
  head: Head,
  { table, values }: { readonly table: AttributeSet<F>; readonly values: Attributes<F> },
): void {
  const start = openIpsetMessage(out.out, head)
  writeAttributes(out, table, values)
  closeMessage(out.out, start)
}

function request<F extends Fields>(head: Head, table: AttributeSet<F>, values: Attributes<F>): Uint8Array {
  const out = new AttributeWriter(new ByteWriter(128))
  write(out, head, { table, values })
  return out.out.written()
}
