import { addressBytes, addressText } from './address.ts'

export type ProbeProtocol = 'TCP' | 'UDP' | 'SCTP'

export const PROTOCOL_NUMBER: Readonly<Record<ProbeProtocol, number>> = { TCP: 6, UDP: 17, SCTP: 132 }

/** One first packet of a connection with a number in it: TCP sequence, UDP payload or SCTP initiate tag. */
interface Probe {
  readonly source: string
  readonly destination: string
  readonly protocol: ProbeProtocol
  readonly sourcePort: number
  readonly destinationPort: number
  readonly ident: number
}

/** What a received packet says about a probe; the addresses of `refused` and `reset` are those of the probe. */
export interface Sighting {
  readonly kind: /** The probe itself. */
    | 'probe'
    /** An ICMP port unreachable that quotes it. */
    | 'refused'
    /** Another ICMP error that quotes it. */
    | 'icmp'
    /** A TCP RST that answers it. */
    | 'reset'
  readonly ident: number
  readonly source: string
  readonly destination: string
  readonly port: number
  /**
   * False when the transport checksum of a probe is wrong. Always true for errors, which quote only a part, and for
   * resets, whose checksum the kernel leaves to the network card.
   */
  readonly checksumRight: boolean
}

const MAGIC = Buffer.from('PROBE')

/** The whole IP packet. */
export function encodeProbe(probe: Probe): Buffer {
  const source = addressBytes(probe.source)
  const destination = addressBytes(probe.destination)
  const transport = encodeTransport(probe)
  sealTransport(transport, { protocol: PROTOCOL_NUMBER[probe.protocol], source, destination })
  const header = source.length === 4 ? header4(probe, transport.length) : header6(probe, transport.length)
  Buffer.from(source).copy(header, source.length === 4 ? 12 : 8)
  Buffer.from(destination).copy(header, source.length === 4 ? 16 : 24)
  if (source.length === 4) header.writeUInt16BE(checksum([header]), 10)
  return Buffer.concat([header, transport])
}

function header4(probe: Probe, length: number): Buffer {
  const header = Buffer.alloc(20)
  header.writeUInt16BE(0x4500, 0)
  header.writeUInt16BE(20 + length, 2)
  header.writeUInt16BE(probe.ident & 0xffff, 4)
  header.writeUInt8(64, 8)
  header.writeUInt8(PROTOCOL_NUMBER[probe.protocol], 9)
  return header
}

function header6(probe: Probe, length: number): Buffer {
  const header = Buffer.alloc(40)
  header.writeUInt32BE(0x60000000, 0)
  header.writeUInt16BE(length, 4)
  header.writeUInt8(PROTOCOL_NUMBER[probe.protocol], 6)
  header.writeUInt8(64, 7)
  return header
}

function encodeTransport(probe: Probe): Buffer {
  const ports = Buffer.alloc(4)
  ports.writeUInt16BE(probe.sourcePort, 0)
  ports.writeUInt16BE(probe.destinationPort, 2)
  if (probe.protocol === 'TCP') return Buffer.concat([ports, tcpSyn(probe.ident)])
  if (probe.protocol === 'UDP') return Buffer.concat([ports, udpRest(probe.ident)])
  return Buffer.concat([ports, sctpInit(probe.ident)])
}

function tcpSyn(ident: number): Buffer {
  const rest = Buffer.alloc(16)
  rest.writeUInt32BE(ident, 0)
  rest.writeUInt16BE(0x5002, 8)
  rest.writeUInt16BE(64240, 10)
  return rest
}

function udpRest(ident: number): Buffer {
  const rest = Buffer.alloc(13)
  rest.writeUInt16BE(17, 0)
  MAGIC.copy(rest, 4)
  rest.writeUInt32BE(ident, 9)
  return rest
}

/** An INIT chunk after the common header; the tag of the common header must be 0 (RFC 9260 8.5.1). */
function sctpInit(ident: number): Buffer {
  const rest = Buffer.alloc(28)
  rest.writeUInt8(1, 8)
  rest.writeUInt16BE(20, 10)
  rest.writeUInt32BE(ident, 12)
  rest.writeUInt32BE(65536, 16)
  rest.writeUInt16BE(1, 20)
  rest.writeUInt16BE(1, 22)
  rest.writeUInt32BE(ident, 24)
  return rest
}

interface Envelope {
  readonly protocol: number
  readonly source: Uint8Array
  readonly destination: Uint8Array
}

function sealTransport(transport: Buffer, envelope: Envelope): void {
  if (envelope.protocol === PROTOCOL_NUMBER.SCTP) transport.writeUInt32LE(crc32c(transport), 8)
  else
    transport.writeUInt16BE(
      transportChecksum(transport, envelope) || 0xffff,
      checksumOffset(envelope.protocol),
    )
}

function checksumOffset(protocol: number): number {
  return protocol === PROTOCOL_NUMBER.TCP ? 16 : 6
}

function transportChecksum(transport: Buffer, envelope: Envelope): number {
  const pseudo = Buffer.alloc(8)
  pseudo.writeUInt32BE(transport.length, 0)
  pseudo.writeUInt8(envelope.protocol, 7)
  return checksum([envelope.source, envelope.destination, pseudo, transport])
}

/** RFC 1071, over parts of which only the last may have an odd length. */
function checksum(parts: readonly Uint8Array[]): number {
  let sum = 0
  for (const part of parts) {
    for (let i = 0; i < part.length; i += 2) sum += ((part[i] ?? 0) << 8) | (part[i + 1] ?? 0)
  }
  while (sum > 0xffff) sum = (sum & 0xffff) + (sum >>> 16)
  return ~sum & 0xffff
}

function crc32c(bytes: Uint8Array): number {
  let crc = 0xffffffff
  for (const byte of bytes) {
    crc ^= byte
    for (let bit = 0; bit < 8; bit++) crc = (crc >>> 1) ^ (crc & 1 ? 0x82f63b78 : 0)
  }
  return ~crc >>> 0
}

/** Undefined when the packet has nothing to do with a probe. `quoted` packets may be cut short. */
export function decodeSighting(packet: Buffer, quoted = false): Sighting | undefined {
  const outer = decodeHeader(packet)
  if (outer === undefined) return undefined
  if (isIcmpError(outer)) return decodeIcmp(outer)
  const { transport } = outer
  if (transport.length < 8) return undefined
  const found = identOf(outer)
  if (found === undefined) return undefined
  return {
    ...found,
    source: addressText(outer.source),
    destination: addressText(outer.destination),
    port: transport.readUInt16BE(2),
    checksumRight: quoted || found.kind !== 'probe' || isSealed(transport, outer),
  }
}

interface Decoded extends Envelope {
  readonly transport: Buffer
}

function decodeHeader(packet: Buffer): Decoded | undefined {
  const version = (packet[0] ?? 0) >> 4
  if (version === 4 && packet.length >= 20) {
    return {
      protocol: packet.readUInt8(9),
      source: packet.subarray(12, 16),
      destination: packet.subarray(16, 20),
      transport: packet.subarray((packet.readUInt8(0) & 15) * 4),
    }
  }
  if (version !== 6 || packet.length < 40) return undefined
  return {
    protocol: packet.readUInt8(6),
    source: packet.subarray(8, 24),
    destination: packet.subarray(24, 40),
    transport: packet.subarray(40),
  }
}

const ICMP = 1
const ICMPV6 = 58

/** Destination unreachable in both families; parameter problem too in IPv6, where unknown protocols are that. */
function isIcmpError({ protocol, transport }: Decoded): boolean {
  const type = transport[0]
  return (protocol === ICMP && type === 3) || (protocol === ICMPV6 && (type === 1 || type === 4))
}

function decodeIcmp({ protocol, transport }: Decoded): Sighting | undefined {
  const inner = decodeSighting(transport.subarray(8), true)
  if (inner === undefined) return undefined
  const portUnreachable = protocol === ICMP ? 0x0303 : 0x0104
  return { ...inner, kind: transport.readUInt16BE(0) === portUnreachable ? 'refused' : 'icmp' }
}

function identOf({ protocol, transport }: Decoded): Pick<Sighting, 'kind' | 'ident'> | undefined {
  if (protocol === PROTOCOL_NUMBER.TCP) return identOfTcp(transport)
  if (protocol === PROTOCOL_NUMBER.UDP && transport.subarray(8, 13).equals(MAGIC) && transport.length >= 17) {
    return { kind: 'probe', ident: transport.readUInt32BE(13) }
  }
  if (protocol === PROTOCOL_NUMBER.SCTP && transport.length >= 20 && transport[12] === 1) {
    return { kind: 'probe', ident: transport.readUInt32BE(16) }
  }
  return undefined
}

const SYN = 0x02
const RST = 0x04
const ACK = 0x10

function identOfTcp(transport: Buffer): Pick<Sighting, 'kind' | 'ident'> | undefined {
  const ident = transport.readUInt32BE(4)
  const flags = transport[13]
  // An IPv4 error may quote no more than 8 bytes, which have the sequence number but no flags.
  if (flags === undefined) return { kind: 'probe', ident }
  if (flags & RST) return { kind: 'reset', ident: (transport.readUInt32BE(8) - 1) >>> 0 }
  return (flags & (SYN | ACK)) === SYN ? { kind: 'probe', ident } : undefined
}

function isSealed(transport: Buffer, envelope: Envelope): boolean {
  if (envelope.protocol !== PROTOCOL_NUMBER.SCTP) return transportChecksum(transport, envelope) === 0
  const copy = Buffer.from(transport)
  copy.writeUInt32LE(0, 8)
  return crc32c(copy) === transport.readUInt32LE(8)
}
