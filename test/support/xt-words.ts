import { parseIp } from '../../src/base/ip.ts'
import type { Octets } from '../../src/base/octets.ts'
import type { XtAddress, XtPorts } from '../../src/kernel/xt/rule.ts'

/** Parts of rules of iptables, in few words. */

export function ipOf(text: string): Octets {
  const ip = parseIp(text)
  if (ip === undefined) throw new Error(`${text} is no address`)
  return ip
}

export function prefixMask(bits: number, bytes: number): Octets {
  let mask = ''
  for (let at = 0; at < bytes; at++) {
    const here = Math.min(8, Math.max(0, bits - at * 8))
    mask += String.fromCharCode((0xff00 >> here) & 0xff)
  }
  return mask
}

export function address(text: string, bits: number, inverted = false): XtAddress {
  const ip = ipOf(text)
  const mask = prefixMask(bits, ip.length)
  const octets = [...ip].map((byte, at) => String.fromCharCode(byte.charCodeAt(0) & mask.charCodeAt(at)))
  return { ip: octets.join(''), mask, inverted }
}

export function odd(ip: string, mask: string): XtAddress {
  return { ip: ipOf(ip), mask: ipOf(mask), inverted: false }
}

export function ports(from: number, to = from, inverted = false): XtPorts {
  return { from, to, inverted }
}
