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
  const loadBalancerIps = ingress.filter(ip => isGuarded(findings, ranges, ip))
  return {
    clusterIps,
    // Nothing would restrict the clients of an external address that was refused as a load-balancer address.
    externalIps: externalIps.filter(ip => !ingress.includes(ip) || loadBalancerIps.includes(ip)),
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
    clusterIps: [],
    families: families.length === 0 ? FAMILIES : families,
  }
  const externalIps = readExternalIps(reading, spec.externalIPs)
  return { clusterIps: [], externalIps, loadBalancerIps: [], sourceRanges: [], writtenRanges: [] }
}

/** A Service whose name stands for its endpoints and not for an address of its own. */
export function isHeadless(spec: Json): boolean {
  const { clusterIPs } = spec
  const clusterIp: unknown =
    Array.isArray(clusterIPs) && clusterIPs.length > 0 ? clusterIPs[0] : spec.clusterIP
  return isAbsent(clusterIp) || clusterIp === 'None'
}

function readClusterIps(findings: Findings, spec: Json): readonly Ip[] {
  const listed = listField(findings, spec.clusterIPs, 'spec.clusterIPs')
  const families = listField(findings, spec.ipFamilies, 'spec.ipFamilies')
  // Objects older than dual stack have the singular field only.
  const values = listed.length > 0 ? listed : [spec.clusterIP]
  const ips: Ip[] = []
  values.forEach((value, index) => {
    const family = readFamily(families[index])
    const ip = readAddress(value, family)
    if (ip !== undefined && !hasFamily(ips, ip)) {
      ips.push(ip)
      return
    }
    const field = listed.length > 0 ? `spec.clusterIPs[${index}]` : 'spec.clusterIP'
    const second = ip && `a second ${familyOf(ip)} address; a Service has one per family`
    refuse(findings, field, value, second ?? whyNotAddress(value, family))
  })
  return trimmed(ips)
}

function readFamily(value: unknown): Family | undefined {
  return value === 'IPv4' || value === 'IPv6' ? value : undefined
}

function hasFamily(ips: readonly Ip[], ip: Ip): boolean {
  return ips.some(other => familyOf(other) === familyOf(ip))
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
  return unique(list.flatMap((item, index) => readExternal(reading, item, `spec.externalIPs[${index}]`)))
}

/** Entries without an address (a hostname, or nothing) have no meaning for a proxy: CVE-2021-25736. */
function readIngress(reading: Reading, status: Json): readonly Ip[] {
  const { findings } = reading
  const balancer = objectField(findings, status.loadBalancer, 'status.loadBalancer')
  const list = listField(findings, balancer.ingress, 'status.loadBalancer.ingress')
  const ips = list.flatMap((entry, index) => {
    const field = `status.loadBalancer.ingress[${index}]`
    if (!isJson(entry)) refuse(findings, field, entry, 'not an object')
    else if (!isAbsent(entry.ip) && isVip(findings, entry.ipMode, `${field}.ipMode`))
      return readExternal(reading, entry.ip, `${field}.ip`)
    return []
  })
  return unique(ips)
}

/** Mode Proxy: the balancer itself sends traffic on to the nodes, which are not to take the shortcut (KEP-1860). */
function isVip(findings: Findings, mode: unknown, field: string): boolean {
  if (isAbsent(mode) || mode === 'VIP') return true
  if (mode !== 'Proxy') refuse(findings, field, mode, 'not a mode; VIP and Proxy are accepted, using Proxy')
  return false
}

/** Gives the address in a list; nothing where it is refused. */
function readExternal(reading: Reading, value: unknown, field: string): readonly Ip[] {
  const { findings, clusterIps, families } = reading
  const ip = readAddress(value)
  if (ip === undefined) {
    refuse(findings, field, value, whyNotAddress(value))
    return []
  }
  const family = familyOf(ip)
  if (families === undefined ? hasFamily(clusterIps, ip) : families.includes(family)) return [ip]
  const lack =
    families === undefined ? `has no ${family} ClusterIP` : `is not in that family (spec.ipFamilies)`
  refuse(findings, field, value, `an ${family} address of a Service that ${lack}`)
  return []
}

interface SourceRanges {
  /** Merged, sorted. */
  readonly cidrs: readonly Cidr[]
  readonly written: readonly Cidr[]
  /** Families all of whose ranges were refused. They must not become unrestricted. */
  readonly unreadable: ReadonlySet<Family>
}

const NO_RANGES: SourceRanges = { cidrs: [], written: [], unreadable: new Set() }

function readSourceRanges(findings: Findings, value: unknown): SourceRanges {
  const list = listField(findings, value, 'spec.loadBalancerSourceRanges')
  if (list.length === 0) return NO_RANGES
  const cidrs: Cidr[] = []
  const refused = new Set<Family>()
  for (const [index, text] of list.entries()) {
    const cidr = readPrefix(text)
    if (cidr !== undefined) {
      cidrs.push(cidr)
      continue
    }
    refuse(findings, `spec.loadBalancerSourceRanges[${index}]`, text, whyNotPrefix(text))
    refused.add(typeof text === 'string' && text.includes(':') ? 'IPv6' : 'IPv4')
  }
  for (const { ip } of cidrs) refused.delete(familyOf(ip))
  return { cidrs: mergeCidrs(cidrs), written: trimmed(cidrs), unreadable: refused }
}

/** Refuses a load-balancer address whose only ranges were refused: without ranges all clients could connect. */
function isGuarded(findings: Findings, { unreadable }: SourceRanges, ip: Ip): boolean {
  const family = familyOf(ip)
  if (!unreadable.has(family)) return true
  const reason = `ignored: no ${family} source range is valid, so the address would be open to all clients`
  refuse(findings, 'status.loadBalancer.ingress', formatIp(ip), reason)
  return false
}

function unique(ips: readonly Ip[]): readonly Ip[] {
  return trimmed(ips.length < 2 ? ips : [...new Set(ips)])
}
