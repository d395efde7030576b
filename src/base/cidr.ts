import { compareIps, formatIp, type Ip, parseIp, whyNotIp } from './ip.ts'

/** A prefix: `ip` has no bits set beyond the first `bits`. */
export interface Cidr {
  readonly ip: Ip
  readonly bits: number
}

/**
 * The prefix that `text` (`10.0.0.0/8`) says, host bits cleared, or undefined; whyNotCidr then says why. The address is
 * read as by parseIp and the length as a decimal number.
 */
export function parseCidr(text: string): Cidr | undefined {
  const slash = text.indexOf('/')
  const ip = slash < 0 ? undefined : parseIp(text.slice(0, slash))
  if (ip === undefined) return undefined
  const bits = decimal(text, slash + 1)
  return bits >= 0 && bits <= ip.length * 8 ? cidrOf(ip, bits) : undefined
}

/** Why parseCidr refuses `text`, and what it takes. */
export function whyNotCidr(text: string): string {
  if (text === '') return 'empty; write it like 192.0.2.0/24 or 2001:db8::/32'
  const slash = text.indexOf('/')
  if (slash < 0) return 'not a CIDR; write it like 192.0.2.0/24 or 2001:db8::/32'
  const address = text.slice(0, slash)
  const ip = parseIp(address)
  if (ip === undefined) return `not a CIDR: its address is ${whyNotIp(address)}`
  return `not a CIDR: the prefix length must be 0 to ${ip.length * 8}`
}

/** The prefix of `bits` bits that `ip` is in. */
export function cidrOf(ip: Ip, bits: number): Cidr {
  const whole = bits >> 3
  const rest = bits & 7
  if (whole === ip.length) return { ip, bits }
  const edge = ip.charCodeAt(whole) & (0xff00 >> rest)
  const head = ip.slice(0, whole) + String.fromCharCode(edge & 0xff)
  return { ip: head + '\0'.repeat(ip.length - whole - 1), bits }
}

/** The prefix that holds `ip` alone. */
export function hostCidr(ip: Ip): Cidr {
  return { ip, bits: ip.length * 8 }
}

/** False for an address of the other family. */
export function contains(cidr: Cidr, ip: Ip): boolean {
  if (ip.length !== cidr.ip.length) return false
  const whole = cidr.bits >> 3
  for (let at = 0; at < whole; at++) if (ip.charCodeAt(at) !== cidr.ip.charCodeAt(at)) return false
  const rest = cidr.bits & 7
  return rest === 0 || ((ip.charCodeAt(whole) ^ cidr.ip.charCodeAt(whole)) & (0xff00 >> rest) & 0xff) === 0
}

export function anyContains(cidrs: readonly Cidr[], ip: Ip): boolean {
  for (const cidr of cidrs) if (contains(cidr, ip)) return true
  return false
}

/** `192.0.2.0/24`, `2001:db8::/32`. */
export function formatCidr(cidr: Cidr): string {
  return `${formatIp(cidr.ip)}/${cidr.bits}`
}

/** IPv4 before IPv6, then by address, then the larger prefix first. */
export function compareCidrs(a: Cidr, b: Cidr): number {
  return compareIps(a.ip, b.ip) || a.bits - b.bits
}

/** The smallest set of prefixes that holds the same addresses: sorted, disjoint, without mergeable neighbors. */
export function mergeCidrs(cidrs: readonly Cidr[]): readonly Cidr[] {
  const merged: Cidr[] = []
  for (const cidr of cidrs.toSorted(compareCidrs)) {
    const last = merged.at(-1)
    // Sorted, so that whatever holds this prefix stands right before it.
    if (last !== undefined && last.bits <= cidr.bits && contains(last, cidr.ip)) continue
    merged.push(cidr)
    joinSiblings(merged)
  }
  return merged
}

/** Replaces the two halves of a prefix at the end of the list by the whole, for as long as there are any. */
function joinSiblings(cidrs: Cidr[]): void {
  for (;;) {
    const right = cidrs.at(-1)
    const left = cidrs.at(-2)
    if (right === undefined || left === undefined || left.bits !== right.bits || left.bits === 0) return
    const parent = cidrOf(left.ip, left.bits - 1)
    if (parent.ip !== left.ip || !contains(parent, right.ip)) return
    cidrs.splice(-2, 2, parent)
  }
}

/** The decimal number that is the rest of `text`, or -1. */
function decimal(text: string, from: number): number {
  if (from >= text.length) return -1
  let value = 0
  for (let at = from; at < text.length; at++) {
    const digit = text.charCodeAt(at) - 48
    if (digit < 0 || digit > 9) return -1
    value = value * 10 + digit
    if (value > 128) return -1
  }
  return value
}
