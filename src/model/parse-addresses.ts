import { trimmed } from '../base/collections.ts'
import { type Cidr, FAMILIES, type Family, familyOf, formatIp, type Ip, mergeCidrs } from '../base/ip.ts'
import {
  type Findings,
  isAbsent,
  isJson,
  type Json,
  listField,
  objectField,
  readAddress,
  readPrefix,
  refuse,
  whyNotAddress,
  whyNotPrefix,
} from './fields.ts'

/** The addresses of a Service and who may use them. */
export interface ServiceAddresses {
  readonly clusterIps: readonly Ip[]
  readonly externalIps: readonly Ip[]
  readonly loadBalancerIps: readonly Ip[]
  readonly sourceRanges: readonly Cidr[]
  readonly writtenRanges: readonly Cidr[]
}

export function readAddresses(findings: Findings, spec: Json, status: Json): ServiceAddresses {
  const ranges = readSourceRanges(findings, spec.loadBalancerSourceRanges)
  const clusterIps = readClusterIps(findings, spec)
  const reading: Reading = { findings, clusterIps }
  const externalIps = readExternalIps(reading, spec.externalIPs)
  const ingress = readIngress(reading, status)
  const loadBalancerIps = withoutUnreadable(findings, ranges, ingress)
  return {
    clusterIps,
    externalIps:
      ingress.length === loadBalancerIps.length
        ? externalIps
        : guarded(externalIps, ingress, loadBalancerIps),
    loadBalancerIps,
    sourceRanges: ranges.cidrs,
    writtenRanges: ranges.written,
  }
}

/** Reads a Service without a ClusterIP: only external addresses lead to it, in its families, or in any if it names none. */
export function readHeadlessAddresses(findings: Findings, spec: Json): ServiceAddresses {
  const families = listField(findings, spec.ipFamilies, 'spec.ipFamilies').flatMap(
    value => readFamily(value) ?? [],
  )
  const reading: Reading = {
    findings,
    clusterIps: NO_IPS,
    families: families.length === 0 ? FAMILIES : families,
  }
  const externalIps = readExternalIps(reading, spec.externalIPs)
  return { clusterIps: [], externalIps, loadBalancerIps: [], sourceRanges: [], writtenRanges: [] }
}

/** Drops external addresses that were refused as load-balancer addresses: nothing would restrict their clients. */
function guarded(externalIps: readonly Ip[], asked: readonly Ip[], taken: readonly Ip[]): readonly Ip[] {
  return externalIps.filter(ip => !asked.includes(ip) || taken.includes(ip))
}

/** A Service whose name stands for its endpoints and not for an address of its own. */
export function isHeadless(spec: Json): boolean {
  const { clusterIPs } = spec
  const clusterIp: unknown =
    Array.isArray(clusterIPs) && clusterIPs.length > 0 ? clusterIPs[0] : spec.clusterIP
  return isAbsent(clusterIp) || clusterIp === 'None'
}

const NO_IPS: readonly Ip[] = []

function readClusterIps(findings: Findings, spec: Json): readonly Ip[] {
  const listed = listField(findings, spec.clusterIPs, 'spec.clusterIPs')
  const families = listField(findings, spec.ipFamilies, 'spec.ipFamilies')
  // Objects older than dual stack have the singular field only.
  const values = listed.length > 0 ? listed : [spec.clusterIP]
  let ips = NO_IPS
  for (let index = 0; index < values.length; index++) {
    const value = values[index]
    const family = readFamily(families[index])
    const ip = readAddress(value, family)
    const reason = ip === undefined ? whyNotAddress(value, family) : whyNotSecond(ips, ip)
    if (reason !== undefined)
      refuse(findings, listed.length > 0 ? `spec.clusterIPs[${index}]` : 'spec.clusterIP', value, reason)
    else if (ip !== undefined) ips = ips.length === 0 ? [ip] : [...ips, ip]
  }
  return ips
}

function readFamily(value: unknown): Family | undefined {
  return value === 'IPv4' || value === 'IPv6' ? value : undefined
}

function whyNotSecond(ips: readonly Ip[], ip: Ip): string | undefined {
  return hasFamily(ips, ip) ? `a second ${familyOf(ip)} address; a Service has one per family` : undefined
}

function hasFamily(ips: readonly Ip[], ip: Ip): boolean {
  for (let index = 0; index < ips.length; index++) if (ips[index]?.length === ip.length) return true
  return false
}

interface Reading {
  readonly findings: Findings
  /** Their families are those in which the Service is proxied at all. */
  readonly clusterIps: readonly Ip[]
  /** The families of a Service that has no ClusterIPs. */
  readonly families?: readonly Family[]
}

function readExternalIps(reading: Reading, value: unknown): readonly Ip[] {
  const list = listField(reading.findings, value, 'spec.externalIPs')
  if (list.length === 0) return NO_IPS
  const ips: Ip[] = []
  for (let index = 0; index < list.length; index++) {
    const ip = readExternal(reading, list[index], `spec.externalIPs[${index}]`)
    if (ip !== undefined) ips.push(ip)
  }
  return unique(ips)
}

/** Entries without an address (a hostname, or nothing) have no meaning for a proxy: CVE-2021-25736. */
function readIngress(reading: Reading, status: Json): readonly Ip[] {
  const { findings } = reading
  const balancer = objectField(findings, status.loadBalancer, 'status.loadBalancer')
  const list = listField(findings, balancer.ingress, 'status.loadBalancer.ingress')
  if (list.length === 0) return NO_IPS
  const ips: Ip[] = []
  for (let index = 0; index < list.length; index++) {
    const entry = list[index]
    const field = `status.loadBalancer.ingress[${index}]`
    if (!isJson(entry)) refuse(findings, field, entry, 'not an object')
    else if (!isAbsent(entry.ip) && isVip(findings, entry.ipMode, `${field}.ipMode`)) {
      const ip = readExternal(reading, entry.ip, `${field}.ip`)
      if (ip !== undefined) ips.push(ip)
    }
  }
  return unique(ips)
}

/** Mode Proxy: the balancer itself sends traffic on to the nodes, which are not to take the shortcut (KEP-1860). */
function isVip(findings: Findings, mode: unknown, field: string): boolean {
  if (isAbsent(mode) || mode === 'VIP') return true
  if (mode !== 'Proxy') refuse(findings, field, mode, 'not a mode; VIP and Proxy are accepted, using Proxy')
  return false
}

function readExternal(reading: Reading, value: unknown, field: string): Ip | undefined {
  const ip = readAddress(value)
  if (ip === undefined) {
    refuse(reading.findings, field, value, whyNotAddress(value))
    return undefined
  }
  const { findings, clusterIps, families } = reading
  const family = familyOf(ip)
  if (families === undefined ? hasFamily(clusterIps, ip) : families.includes(family)) return ip
  const lack =
    families === undefined ? `has no ${family} ClusterIP` : `is not in that family (spec.ipFamilies)`
  refuse(findings, field, value, `an ${family} address of a Service that ${lack}`)
  return undefined
}

interface SourceRanges {
  /** Merged, sorted. */
  readonly cidrs: readonly Cidr[]
  readonly written: readonly Cidr[]
  /** Families all of whose ranges were refused. They must not become unrestricted. */
  readonly unreadable: readonly Family[]
}

const NO_RANGES: SourceRanges = { cidrs: [], written: [], unreadable: [] }

function readSourceRanges(findings: Findings, value: unknown): SourceRanges {
  const list = listField(findings, value, 'spec.loadBalancerSourceRanges')
  if (list.length === 0) return NO_RANGES
  const cidrs: Cidr[] = []
  const refused = new Set<Family>()
  for (let index = 0; index < list.length; index++) {
    const text = list[index]
    const cidr = readPrefix(text)
    if (cidr !== undefined) {
      cidrs.push(cidr)
      continue
    }
    refuse(findings, `spec.loadBalancerSourceRanges[${index}]`, text, whyNotPrefix(text))
    refused.add(typeof text === 'string' && text.includes(':') ? 'IPv6' : 'IPv4')
  }
  return {
    cidrs: mergeCidrs(cidrs),
    written: trimmed(cidrs),
    unreadable: withoutRanges([...refused], cidrs),
  }
}

function withoutRanges(families: readonly Family[], cidrs: readonly Cidr[]): readonly Family[] {
  return families.filter(family => !cidrs.some(cidr => familyOf(cidr.ip) === family))
}

/** Leaves out load-balancer addresses whose only ranges were refused: without ranges all clients could connect. */
function withoutUnreadable(findings: Findings, ranges: SourceRanges, ips: readonly Ip[]): readonly Ip[] {
  const { unreadable } = ranges
  return unreadable.length === 0 ? ips : ips.filter(ip => isReadable(findings, unreadable, ip))
}

function isReadable(findings: Findings, unreadable: readonly Family[], ip: Ip): boolean {
  const family = familyOf(ip)
  if (!unreadable.includes(family)) return true
  const reason = `ignored: no ${family} source range is valid, so the address would be open to all clients`
  refuse(findings, 'status.loadBalancer.ingress', formatIp(ip), reason)
  return false
}

function unique(ips: readonly Ip[]): readonly Ip[] {
  return [...new Set(ips)]
}
