import { type Octets, readU32be, u32be } from './octets.ts'

/** An IP address as its 4 or 16 bytes in network order; the length implies the family. */
export type Ip = Octets

export type Family = 'IPv4' | 'IPv6'
/** The families in kube-proxy's order. */
export const FAMILIES: readonly Family[] = ['IPv4', 'IPv6']

/** Derives the family from the length. */
export function familyOf(ip: Ip): Family {
  return ip.length === 4 ? 'IPv4' : 'IPv6'
}

/**
 * The address in `text`, or undefined; whyNotIp then gives the reason.
 *
 * There is one reading, that of the parser Kubernetes itself uses (Go's before 1.17): numbers are decimal whatever
 * zeros they start with (`010.0.0.1` is 10.0.0.1), all four must be there, and IPv6 takes `::` and a trailing IPv4 part
 * but no zone. An IPv4-mapped address stays the 16 bytes it is: see isIpv4Mapped.
 */
export function parseIp(text: string): Ip | undefined {
  return parseIpv4(text, 0) ?? parseIpv6(text)
}

export function whyNotIp(text: string): string {
  if (text === '') return 'empty where an IP address belongs'
  if (text.includes('%'))
    return 'an IP address with a zone, which has no meaning on other nodes; omit the zone'
  if (text.includes('/')) return 'a prefix where a single IP address belongs'
  return 'not an IP address; write it like 192.0.2.1 or 2001:db8::1'
}

/** Canonical text: plain decimals, or RFC 5952 (with IPv4-mapped addresses in mixed notation). */
export function formatIp(ip: Ip): string {
  if (ip.length === 4) return formatIpv4(ip, 0)
  if (isIpv4Mapped(ip)) return `::ffff:${formatIpv4(ip, 12)}`
  const groups: number[] = []
  for (let at = 0; at < 16; at += 2) groups.push((ip.charCodeAt(at) << 8) | ip.charCodeAt(at + 1))
  const gap = longestZeros(groups)
  if (gap.length < 2) return hexGroups(groups, 0, 8)
  return `${hexGroups(groups, 0, gap.start)}::${hexGroups(groups, gap.start + gap.length, 8)}`
}

/** Formats as inet_ntop(3) does: IPv4-compatible addresses (::/96) end in IPv4 notation, too. */
export function formatIpAsC(ip: Ip): string {
  const isCompatible = ip.length === 16 && ip.startsWith('\0'.repeat(12)) && ip.slice(12, 14) !== '\0\0'
  return isCompatible ? `::${formatIp(ip.slice(12))}` : formatIp(ip)
}

/** `192.0.2.1:80`, `[2001:db8::1]:80`. */
export function formatIpPort(ip: Ip, port: number): string {
  return ip.length === 4 ? `${formatIp(ip)}:${port}` : `[${formatIp(ip)}]:${port}`
}

const UNSPECIFIED_V4 = '\0'.repeat(4)
const UNSPECIFIED_V6 = '\0'.repeat(16)
const LOOPBACK_V6 = `${'\0'.repeat(15)}\x01`
const MAPPED_PREFIX = `${'\0'.repeat(10)}\xff\xff`

/** 0.0.0.0 and ::. */
export function isUnspecified(ip: Ip): boolean {
  return ip === UNSPECIFIED_V4 || ip === UNSPECIFIED_V6
}

/** 127.0.0.0/8 and ::1. */
export function isLoopback(ip: Ip): boolean {
  return ip.length === 4 ? ip.charCodeAt(0) === 127 : ip === LOOPBACK_V6
}

/** 169.254.0.0/16 and fe80::/10. */
export function isLinkLocal(ip: Ip): boolean {
  const first = ip.charCodeAt(0)
  if (ip.length === 4) return first === 169 && ip.charCodeAt(1) === 254
  return first === 0xfe && (ip.charCodeAt(1) & 0xc0) === 0x80
}

/** 224.0.0.0/4 and ff00::/8. */
export function isMulticast(ip: Ip): boolean {
  const first = ip.charCodeAt(0)
  return ip.length === 4 ? (first & 0xf0) === 0xe0 : first === 0xff
}

/** 255.255.255.255. */
export function isBroadcast(ip: Ip): boolean {
  return ip.length === 4 && readU32be(ip) === 0xffffffff
}

/** ::ffff:0:0/96: text of one family that programs may read as the other. */
export function isIpv4Mapped(ip: Ip): boolean {
  return ip.length === 16 && ip.startsWith(MAPPED_PREFIX)
}

/** IPv4 before IPv6, then by value. */
export function compareIps(a: Ip, b: Ip): number {
  if (a.length !== b.length) return a.length - b.length
  return a < b ? -1 : a > b ? 1 : 0
}

const DOT = 46
const ZERO = 48
const COLON = 58

function parseIpv4(text: string, from: number): Ip | undefined {
  let value = 0
  let part = 0
  let digits = 0
  let dots = 0
  for (let at = from; at < text.length; at++) {
    const code = text.charCodeAt(at)
    if (code === DOT) {
      if (digits === 0 || dots === 3) return undefined
      value = (value << 8) | part
      part = 0
      digits = 0
      dots++
    } else {
      const digit = code - ZERO
      if (digit < 0 || digit > 9) return undefined
      part = part * 10 + digit
      if (part > 255) return undefined
      digits++
    }
  }
  return dots === 3 && digits > 0 ? u32be((value << 8) | part) : undefined
}

function parseIpv6(text: string): Ip | undefined {
  const groups: number[] = []
  let at = text.startsWith('::') ? 2 : 0
  let gap = at === 2 ? 0 : -1
  while (at < text.length) {
    const end = hexEnd(text, at)
    if (end === at) return undefined
    if (text.charCodeAt(end) === DOT) {
      const tail = parseIpv4(text, at)
      if (tail === undefined) return undefined
      const value = readU32be(tail)
      groups.push(value >>> 16, value & 0xffff)
      break
    }
    const group = Number.parseInt(text.slice(at, end), 16)
    if (group > 0xffff) return undefined
    groups.push(group)
    at = end
    if (at === text.length) break
    if (text.charCodeAt(at) !== COLON || ++at === text.length) return undefined
    if (text.charCodeAt(at) === COLON) {
      if (gap >= 0) return undefined
      gap = groups.length
      at++
    }
    // Bounds the work that hostile text can cause.
    if (groups.length > 8) return undefined
  }
  return ipv6Of(groups, gap)
}

/** Finds the end of the run of hexadecimal digits that starts at `at`. */
function hexEnd(text: string, at: number): number {
  let end = at
  for (; end < text.length; end++) {
    const code = text.charCodeAt(end)
    const lower = code | 0x20
    if (!((code >= ZERO && code <= 57) || (lower >= 97 && lower <= 102))) break
  }
  return end
}

/** `gap` is the index at which `::` stood, or -1; it must stand for at least one group. */
function ipv6Of(groups: readonly number[], gap: number): Ip | undefined {
  if (gap < 0 ? groups.length !== 8 : groups.length > 7) return undefined
  const missing = 8 - groups.length
  let ip = ''
  for (let index = 0; index < groups.length; index++) {
    if (index === gap) ip += '\0\0'.repeat(missing)
    const group = groups[index] ?? 0
    ip += String.fromCharCode(group >>> 8, group & 255)
  }
  return gap === groups.length ? ip + '\0\0'.repeat(missing) : ip
}

function formatIpv4(ip: Ip, at: number): string {
  return `${ip.charCodeAt(at)}.${ip.charCodeAt(at + 1)}.${ip.charCodeAt(at + 2)}.${ip.charCodeAt(at + 3)}`
}

function hexGroups(groups: readonly number[], from: number, to: number): string {
  let text = ''
  for (let index = from; index < to; index++) {
    text += `${index === from ? '' : ':'}${(groups[index] ?? 0).toString(16)}`
  }
  return text
}

function longestZeros(groups: readonly number[]): { readonly start: number; readonly length: number } {
  let best = { start: 0, length: 0 }
  let length = 0
  for (let index = 0; index < groups.length; index++) {
    length = groups[index] === 0 ? length + 1 : 0
    if (length > best.length) best = { start: index - length + 1, length }
  }
  return best
}

/** A prefix: `ip` has no bits set beyond the first `bits`. */
export interface Cidr {
  readonly ip: Ip
  readonly bits: number
}

/**
 * The prefix that `text` (`10.0.0.0/8`) stands for, host bits cleared, or undefined; whyNotCidr then gives the reason.
 * The address is read as by parseIp and the length as a decimal number.
 */
export function parseCidr(text: string): Cidr | undefined {
  const slash = text.indexOf('/')
  const ip = slash < 0 ? undefined : parseIp(text.slice(0, slash))
  if (ip === undefined) return undefined
  const bits = decimal(text, slash + 1)
  return bits >= 0 && bits <= ip.length * 8 ? cidrOf(ip, bits) : undefined
}

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

/** Makes the prefix that holds `ip` alone. */
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

/** Addresses that a filter selects: those of `cidrs` and `ips`, or all but those. */
export interface IpFilter {
  readonly cidrs: readonly Cidr[]
  readonly ips: ReadonlySet<Ip>
  readonly isExcept: boolean
}

export function isSelected({ cidrs, ips, isExcept }: IpFilter, ip: Ip): boolean {
  return (ips.has(ip) || anyContains(cidrs, ip)) !== isExcept
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
