import { type Cidr, familyOf, type Ip } from '../../src/base/ip.ts'
import { isRefusal, type Refusal } from '../../src/model/fields.ts'
import type { EndpointSlice, Service } from '../../src/model/service.ts'
import type { NodeInfo, SourceEvent } from '../../src/model/snapshot.ts'

/*
 * What the types of the model promise and cannot say: whatever an object says, what is parsed from it holds these.
 */

const LABEL = /^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$/
const SUBDOMAIN = /^(?=.{1,253}$)[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$/
const TIME = /^(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ)?$/
const PLAIN_LINE = /^[\x20-\x7e]*$/
/** Two escaped texts of at most 64 characters, and what stands around them. */
const TEXT_MAX = 400

/** What does not hold; empty when all does. */
export function complaintsOf(parsed: SourceEvent | Refusal | undefined): readonly string[] {
  if (parsed === undefined) return []
  if (isRefusal(parsed)) return refusalComplaints([parsed])
  if (parsed.kind === 'LocalIps') return ['an object that is no object of the API']
  const { kind, key, value } = parsed
  if (value === undefined) return []
  switch (kind) {
    case 'Service':
      return [...scoped(key, LABEL), ...serviceComplaints(value)]
    case 'EndpointSlice':
      return [...scoped(key, SUBDOMAIN), ...sliceComplaints(value)]
    case 'ServiceCIDR':
      return value.flatMap(cidrComplaints)
    case 'Node':
      return [...check(SUBDOMAIN.test(key), `key ${key}`), ...nodeComplaints(value)]
  }
}

function check(holds: boolean, what: string): readonly string[] {
  return holds ? [] : [what]
}

function scoped(key: string, name: RegExp): readonly string[] {
  const [namespace = '', its = '', ...more] = key.split('/')
  return check(LABEL.test(namespace) && name.test(its) && more.length === 0, `key ${key}`)
}

function serviceComplaints(service: Service): readonly string[] {
  const { clusterIps, externalIps, loadBalancerIps, ports, affinityTimeoutS, healthCheckNodePort } = service
  const families = clusterIps.map(familyOf)
  const names = ports.map(({ name, protocol }) => `${name}/${protocol}`)
  return [
    ...[clusterIps, externalIps, loadBalancerIps].flatMap(ipsComplaints),
    ...check(new Set(families).size === families.length, 'two ClusterIPs of one family'),
    ...check(new Set(names).size === names.length, 'two ports of one name'),
    ...ports.flatMap(({ name, port, nodePort, protocol }) => [
      ...portComplaints(name, port, protocol),
      ...check(nodePort === 0 || isPort(nodePort), `node port ${nodePort}`),
    ]),
    ...[...service.sourceRanges, ...service.writtenRanges].flatMap(cidrComplaints),
    ...check(isWithin(affinityTimeoutS, 0, 86_400), `affinity ${affinityTimeoutS}`),
    ...check(healthCheckNodePort === 0 || isPort(healthCheckNodePort), `health port ${healthCheckNodePort}`),
    ...check(TIME.test(service.creationTimestamp), `created at ${service.creationTimestamp}`),
    ...check(isWithin(service.tcpDrainMs ?? 0, 0, 86_400_000), `drain ${service.tcpDrainMs}`),
    ...check(/^[a-z0-9_-]{1,15}$/.test(service.ipvsScheduler ?? 'rr'), `scheduler ${service.ipvsScheduler}`),
    ...refusalComplaints(service.refusals),
  ]
}

function sliceComplaints(slice: EndpointSlice): readonly string[] {
  const { endpoints, family, ports, triggerTimeMs } = slice
  const ips = endpoints.map(({ ip }) => ip)
  return [
    ...scoped(slice.service, LABEL),
    ...check(slice.service.split('/')[0] === slice.key.split('/')[0], `${slice.key} is of ${slice.service}`),
    ...ips.flatMap(ip => check(isIp(ip) && familyOf(ip) === family, `endpoint of ${ip.length} octets`)),
    ...check(ips.join() === ips.toSorted().join(), 'endpoints out of order'),
    ...ports.flatMap(({ name, port, protocol }) => portComplaints(name, port, protocol)),
    ...check(Number.isFinite(triggerTimeMs), `trigger time ${triggerTimeMs}`),
    ...refusalComplaints(slice.refusals),
  ]
}

function nodeComplaints({ ips, podCidrs, refusals }: NodeInfo): readonly string[] {
  return [...ipsComplaints(ips), ...podCidrs.flatMap(cidrComplaints), ...refusalComplaints(refusals)]
}

function portComplaints(name: string, port: number, protocol: string): readonly string[] {
  return [
    ...check(name === '' || LABEL.test(name), `port name ${name}`),
    ...check(isPort(port), `port ${port}`),
    ...check(['TCP', 'UDP', 'SCTP'].includes(protocol), `protocol ${protocol}`),
  ]
}

function refusalComplaints(refusals: readonly Refusal[]): readonly string[] {
  return refusals
    .flatMap(({ object, field, value, reason }) => [object, field, value, reason])
    .flatMap(text => check(text.length <= TEXT_MAX && PLAIN_LINE.test(text), `text ${JSON.stringify(text)}`))
}

function ipsComplaints(ips: readonly Ip[]): readonly string[] {
  return [
    ...ips.flatMap(ip => check(isIp(ip), `address of ${ip.length} octets`)),
    ...check(new Set(ips).size === ips.length, 'an address twice'),
  ]
}

function cidrComplaints({ ip, bits }: Cidr): readonly string[] {
  return check(isIp(ip) && isWithin(bits, 0, ip.length * 8), `prefix of ${bits} bits`)
}

function isIp(ip: Ip): boolean {
  return (ip.length === 4 || ip.length === 16) && [...ip].every(octet => octet.charCodeAt(0) <= 0xff)
}

function isPort(port: number): boolean {
  return isWithin(port, 1, 65_535)
}

function isWithin(value: number, min: number, max: number): boolean {
  return Number.isInteger(value) && value >= min && value <= max
}

/** How much a decoder made of some octets. */
export interface Extent {
  values: number
  characters: number
}

/** Counts values and characters, without recursion: nesting may be deep. */
export function extentOf(value: unknown): Extent {
  const extent: Extent = { values: 0, characters: 0 }
  const left: unknown[] = [value]
  while (left.length > 0) {
    const next = left.pop()
    extent.values++
    if (typeof next === 'string') extent.characters += next.length
    else if (typeof next === 'object' && next !== null && !Buffer.isBuffer(next))
      for (const each of Object.values(next)) left.push(each)
  }
  return extent
}
