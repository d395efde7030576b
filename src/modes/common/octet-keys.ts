import type { Octets } from '../../base/octets.ts'
import { IPPROTO_SCTP, IPPROTO_TCP, IPPROTO_UDP } from '../../kernel/nft/constants.ts'
import type { Protocol } from '../../model/service.ts'

export const PROTOCOL_NUMBERS: Readonly<Record<Protocol, number>> = {
  TCP: IPPROTO_TCP,
  UDP: IPPROTO_UDP,
  SCTP: IPPROTO_SCTP,
}

/** Encodes protocol and port: the last 8 bytes of a frontends key, and all of a nodeports key. */
export function portKey(protocol: Protocol, port: number): Octets {
  return String.fromCharCode(PROTOCOL_NUMBERS[protocol], 0, 0, 0, port >>> 8, port & 255, 0, 0)
}

/** Gives the protocol of a key that ends in a portKey. */
export function protocolOfKey(key: Octets): Protocol | undefined {
  const number = key.charCodeAt(key.length - 8)
  if (number === PROTOCOL_NUMBERS.TCP) return 'TCP'
  if (number === PROTOCOL_NUMBERS.UDP) return 'UDP'
  return number === PROTOCOL_NUMBERS.SCTP ? 'SCTP' : undefined
}

/** Encodes a port as the second half of an endpoint: two bytes and the padding of a 32-bit register. */
export function portData(port: number): Octets {
  return String.fromCharCode(port >>> 8, port & 255, 0, 0)
}

/** Gives `length` bytes of which the first `bits` bits are set. */
export function prefixMask(bits: number, length: number): Octets {
  let mask = ''
  for (let left = bits; mask.length < length; left -= 8) {
    mask += String.fromCharCode(left >= 8 ? 255 : left <= 0 ? 0 : (0xff00 >>> left) & 255)
  }
  return mask
}
