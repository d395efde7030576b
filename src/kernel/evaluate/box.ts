import type { Ip } from '../../base/ip.ts'
import { u32host } from '../../base/octets.ts'
import { point, prefix, type Region, union } from '../../base/region.ts'
import type { IpvsProtocol } from '../ipvs/state.ts'
import { RTN_LOCAL } from '../nft/constants.ts'
import { BeyondEvaluator, type Field, type Value, type Word } from './machine.ts'

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

interface HeaderPart {
  readonly layout: HeaderLayout
  readonly offset: number
  readonly length: number
}

/** Reads octets of a header: a part of one field, or words of several. */
export function readHeader(
  { layout, offset, length }: HeaderPart,
  read: (field: Field, at: number, length: number) => Value,
): Value {
  const only = layout.find(its => its.offset <= offset && offset + length <= its.offset + its.length)
  if (only !== undefined) return read(only.field, offset - only.offset, length)
  const words: Word[] = []
  for (let at = offset; at < offset + length; at += 4) {
    const size = Math.min(4, offset + length - at)
    const part = layout.find(its => its.offset <= at && at + size <= its.offset + its.length)
    if (part === undefined) throw new BeyondEvaluator(`cannot trace octet ${at} of a header`)
    const value = read(part.field, at - part.offset, size)
    if (typeof value === 'string') words.push(value.padEnd(4, '\0'))
    else words.push(...value)
  }
  return words
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
