import type { Ip } from '../../base/ip.ts'
import { u32host } from '../../base/octets.ts'
import { point, prefix, type Region, union } from '../../base/region.ts'
import type { IpvsProtocol } from '../ipvs/state.ts'
import {
  NF_INET_FORWARD,
  NF_INET_LOCAL_IN,
  NF_INET_LOCAL_OUT,
  NF_INET_POST_ROUTING,
  NF_INET_PRE_ROUTING,
  RTN_LOCAL,
} from '../nft/constants.ts'
import type { Field } from './machine.ts'

/** The values of each field of the packets of a class. */
export type Box = Readonly<Record<Field, Region>>
export type Hook = 'prerouting' | 'output'

interface HeaderField {
  readonly field: Field
  readonly offset: number
  readonly length: number
}
/** Where fields are in a header. */
export type HeaderLayout = readonly HeaderField[]

export const HEADER_4: HeaderLayout = [
  { field: 'destination', offset: 16, length: 4 },
  { field: 'source', offset: 12, length: 4 },
  { field: 'protocol', offset: 9, length: 1 },
]
export const HEADER_6: HeaderLayout = [
  { field: 'destination', offset: 24, length: 16 },
  { field: 'source', offset: 8, length: 16 },
  { field: 'protocol', offset: 6, length: 1 },
]
export const TRANSPORT: HeaderLayout = [
  { field: 'sourcePort', offset: 0, length: 2 },
  { field: 'destinationPort', offset: 2, length: 2 },
]

/** Gives the field that octets of a header are part of. */
export function fieldAt(layout: HeaderLayout, offset: number, length: number): HeaderField | undefined {
  return layout.find(its => its.offset <= offset && offset + length <= its.offset + its.length)
}

/** IPPROTO_* of the protocols that Services and virtual servers have. */
export const NUMBERS: Readonly<Record<IpvsProtocol, number>> = { TCP: 6, UDP: 17, SCTP: 132 }

export const LOCAL = point(u32host(RTN_LOCAL))

export function loopback(length: number): Region {
  return length === 4 ? [prefix('\x7f\0\0\0', 8)] : point(`${'\0'.repeat(15)}\x01`)
}

export function regionOfIps(ips: Iterable<Ip>): Region {
  return union([...ips].map(ip => ({ from: ip, to: ip })))
}

/** Hooks at which connection tracking begins. */
export const TRACKING: readonly number[] = [NF_INET_PRE_ROUTING, NF_INET_LOCAL_OUT]

/** Hooks at which a packet has an input interface. */
export const WITH_INPUT: readonly number[] = [
  NF_INET_PRE_ROUTING,
  NF_INET_LOCAL_IN,
  NF_INET_FORWARD,
  NF_INET_POST_ROUTING,
]
