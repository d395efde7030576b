import { addressBytes, addressText } from '../support/lab/address.ts'

export const RST = 0x04
export const ACK = 0x10

/** A TCP segment over IPv4 (RFC 9293 3.1), without options. */
export interface Segment {
  readonly source: string
  readonly sourcePort: number
  readonly destination: string
  readonly destinationPort: number
  readonly sequence: number
  readonly acknowledgement: number
  readonly flags: number
  /** Bytes of data. */
  readonly length: number
}

const TCP = 6
const HEADERS = 40

/** The whole packet; its data is zeros. */
export function encodeSegment(segment: Segment): Buffer {
  const packet = Buffer.alloc(HEADERS + segment.length)
  packet.writeUInt16BE(0x4500, 0)
  packet.writeUInt16BE(packet.length, 2)
  packet.writeUInt8(64, 8)
  packet.writeUInt8(TCP, 9)
  packet.set(addressBytes(segment.source), 12)
  packet.set(addressBytes(segment.destination), 16)
  packet.writeUInt16BE(checksum(packet.subarray(0, 20), 0), 10)
  packet.writeUInt16BE(segment.sourcePort, 20)
  packet.writeUInt16BE(segment.destinationPort, 22)
  packet.writeUInt32BE(segment.sequence, 24)
  packet.writeUInt32BE(segment.acknowledgement, 28)
  packet.writeUInt16BE(0x5000 | segment.flags, 32)
  packet.writeUInt16BE(64240, 34)
  // The pseudo header: both addresses, which stand before the segment, its protocol and length.
  packet.writeUInt16BE(checksum(packet.subarray(12), TCP + packet.length - 20), 36)
  return packet
}

/** Undefined for what is no TCP over IPv4. */
export function readSegment(packet: Buffer): Segment | undefined {
  if (packet.length < HEADERS || packet[0] !== 0x45 || packet[9] !== TCP) return undefined
  return {
    source: addressText(packet.subarray(12, 16)),
    sourcePort: packet.readUInt16BE(20),
    destination: addressText(packet.subarray(16, 20)),
    destinationPort: packet.readUInt16BE(22),
    sequence: packet.readUInt32BE(24),
    acknowledgement: packet.readUInt32BE(28),
    flags: packet.readUInt8(33),
    length: packet.readUInt16BE(2) - 20 - (packet.readUInt8(32) >> 4) * 4,
  }
}

/** RFC 1071, of an even number of bytes and what is added to them. */
function checksum(bytes: Buffer, more: number): number {
  let sum = more
  for (let at = 0; at < bytes.length; at += 2) sum += bytes.readUInt16BE(at)
  while (sum > 0xffff) sum = (sum & 0xffff) + (sum >>> 16)
  return ~sum & 0xffff
}
