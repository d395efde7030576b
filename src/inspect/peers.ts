import { finish } from '../base/clock.ts'
import {
  anyContains,
  type Cidr,
  type Family,
  familyOf,
  hostCidr,
  type Ip,
  type IpFilter,
  isSelected,
  parseCidr,
  parseIp,
  whyNotCidr,
  whyNotIp,
} from '../base/ip.ts'
import { nearest } from '../base/text.ts'
import type { FlagTexts } from '../config/daemon-config.ts'
import { type FlagReader, quote } from '../config/flag.ts'
import { defaultAdminSocket } from '../config/own-flags.ts'
import { readSnapshotJson } from '../daemon/saved/snapshot-json.ts'
import { isPort } from '../model/fields.ts'
import type { Endpoint, Service, ServicePortSpec } from '../model/service.ts'
import type { Snapshot } from '../model/snapshot.ts'
import { askObjects } from './admin-client.ts'
import { checkDaemon } from './model-request.ts'

/** A client or a destination as given, by address or by name. */
export type Peer =
  | { readonly kind: 'address'; readonly ip: Ip }
  /** `namespace/name`, or the name of a Node. */
  | { readonly kind: 'service' | 'pod' | 'node'; readonly key: string }
  | { readonly kind: 'outside' }

/** A peer with addresses of its own, by the name of its object. */
type NamedPeer = Extract<Peer, { readonly key: string }>

interface Target {
  readonly name: string
  readonly port: string
  readonly protocol: string | undefined
}

/**
 * Splits `[ADDRESS]:PORT`, `NAME:PORT` or `NAME`, the port with or without the protocol, as `dump` prints it. A plain
 * IPv6 address is a name without a port.
 */
export function splitPort(text: string): Target {
  const [, bracketed, plain, port = '', protocol] =
    /^(?:\[(.*)\]|([^:]*))(?::([^:/]*)(?:\/([^:/]*))?)?$/.exec(text) ?? []
  return { name: bracketed ?? plain ?? text, port, protocol }
}

/** Completes `svc/NAME`, `pod/NAME` and the bare name of a Service. */
export function withNamespace(text: string, namespace: string): string {
  if (namespace === '' || text === 'outside') return text
  return text.replace(
    /^(?:(svc\/|service\/|pod\/)([a-z0-9][a-z0-9.-]*)|([a-z][a-z0-9-]*))$/i,
    (_, kind, name, bare) => (bare === undefined ? `${kind}${namespace}/${name}` : `${namespace}/${bare}`),
  )
}

const NAME_FORMS =
  /^(?:node\/(?<node>[^/]+)|(?:(?:svc|service)\/)?(?<service>[^/]+\/[^/]+)|pod\/(?<pod>[^/]+\/[^/]+)|(?<outside>outside)|(?<dns>[^./]+\.[^./]+(?=\.svc(?:\.|$))|[a-z][^./]*\.[^./]+)(?:\.svc(?:\.[^/]*)?)?)$/

/** Reads an address, or the name of a pod, Node or Service; undefined for anything else. */
export function parsePeer(text: string): Peer | undefined {
  const ip = parseIp(text)
  if (ip !== undefined) return { kind: 'address', ip }
  const { service, pod, node, outside, dns } = NAME_FORMS.exec(text)?.groups ?? {}
  if (service !== undefined) return { kind: 'service', key: service }
  if (pod !== undefined) return { kind: 'pod', key: pod }
  if (node !== undefined) return { kind: 'node', key: node }
  if (outside !== undefined) return { kind: 'outside' }
  return dns === undefined ? undefined : { kind: 'service', key: dns.split('.').reverse().join('/') }
}

/** Says why a text is no peer: a name gets no advice on how to write an address. */
export function whyNotPeer(text: string): string {
  if (/^[a-z][a-z0-9-]*$/.test(text)) return 'a name without its kind or namespace'
  const isName = text.includes('/') && parseIp(text.slice(0, text.indexOf('/'))) === undefined
  return isName ? 'neither an address nor the name of an object' : whyNotIp(text)
}

export function serviceAt({ services }: Snapshot, key: string): Service {
  const service = services.get(key)
  if (service !== undefined) return service
  throw new Error(`no Service ${quote(key)}${hintAt(key, services.keys())}`)
}

/** Gives `; did you mean NAME?` where one of the Services has that name elsewhere, or one near it; else an empty text. */
export function hintAt(service: string, known: Iterable<string>): string {
  const names = [...known].map(name => (service.includes(':') ? name : name.replace(/:.*$/, '')))
  const name = afterSlash(service)
  const near =
    names.find(each => afterSlash(each) === name) ??
    nearest(service, names) ??
    names.find(each => nearest(name, [afterSlash(each)]) !== undefined)
  return near === undefined ? '' : `; did you mean ${near}?`
}

function afterSlash(key: string): string {
  return key.slice(key.indexOf('/') + 1).toLowerCase()
}

/** Gives the addresses of a Service, of a pod or of this Node, in both families. Throws for a name that no object has. */
function ipsOf({ kind, key }: NamedPeer, snapshot: Snapshot): readonly Ip[] {
  if (kind === 'service') return serviceAt(snapshot, key).clusterIps
  return kind === 'node' ? nodeIps(snapshot, key) : podEndpoints(snapshot, key).map(({ ip }) => ip)
}

/** Gives one address, of this family where one is given. Throws where there is none. */
export function ipOf(peer: NamedPeer, snapshot: Snapshot, family: Family | undefined): Ip {
  const found = ipsOf(peer, snapshot).find(ip => family === undefined || familyOf(ip) === family)
  if (found !== undefined) return found
  throw new Error(whyNoAddress(peer, snapshot, family))
}

function whyNoAddress({ kind, key }: NamedPeer, snapshot: Snapshot, family: Family | undefined): string {
  const which = family === undefined ? '' : `${family} `
  if (kind === 'service') return `Service ${key} has no ${which}address`
  if (kind === 'node') return `Node ${key} has no ${which}address`
  const near = nearest(key, podKeys(snapshot))
  const hint = near === undefined || near === key ? '' : `; did you mean ${near}?`
  const article = family === undefined ? 'address' : `${family} address`
  return `no EndpointSlice has an ${article} of pod ${key}; give its address: kubectl get pod -o wide${hint}`
}

/** Finds the endpoints of a pod. Only EndpointSlices name pods, so that a pod without a Service is unknown. */
export function podEndpoints({ sliceByKey }: Snapshot, key: string): readonly Endpoint[] {
  const slash = key.indexOf('/')
  const [namespace, name] = [key.slice(0, slash + 1), key.slice(slash + 1)]
  return sliceByKey.values().flatMap(slice => {
    if (!slice.key.startsWith(namespace)) return []
    const index = slice.targetNames?.split(',').indexOf(name) ?? -1
    return slice.endpoints[index] ?? []
  })
}

function podKeys({ sliceByKey }: Snapshot): readonly string[] {
  return sliceByKey.values().flatMap(({ key, targetNames = '' }) => {
    const namespace = key.slice(0, key.indexOf('/') + 1)
    return targetNames.split(',').flatMap(name => (name === '' ? [] : [namespace + name]))
  })
}

/** Finds the addresses of this Node: kprobe reads no others. */
function nodeIps({ node }: Snapshot, name: string): readonly Ip[] {
  if (node === undefined)
    throw new Error(`the Node of this machine is not known; give the address of ${name}`)
  if (node.name === name) return node.ips
  throw new Error(
    `Node ${quote(name)} is not known here, only ${node.name}, the Node of this machine; give its address`,
  )
}

type FilterPeer = { readonly kind: 'cidr'; readonly cidr: Cidr } | { readonly kind: 'outside' } | NamedPeer

const CLIENTS = 'an address, a CIDR, pod/NAMESPACE/NAME, node/NAME or outside'

/** Reads the client of a filter. Reports errors to the reader. */
export function readFilterClient(reader: FlagReader, flag: string, text: string): FilterPeer | undefined {
  const peer = readFilterPeer(reader, flag, { text, forms: CLIENTS })
  if (peer?.kind !== 'service') return peer
  reader.fail(flag, `${quote(text)} is a Service; a client is ${CLIENTS}`)
  return undefined
}

interface FilterTarget {
  readonly peer: FilterPeer
  /** A number, or the name of a port of the Service; empty for all ports. */
  readonly port: string
}

export interface TargetFilter {
  readonly addresses: IpFilter
  /** Undefined for all ports. */
  readonly port: number | undefined
}

export function isTarget({ addresses, port }: TargetFilter, ip: Ip, ipPort: number | undefined): boolean {
  return (port === undefined || port === ipPort) && isSelected(addresses, ip)
}

export const TARGETS =
  'ADDRESS[:PORT], [ADDRESS]:PORT, CIDR, [svc/]NAMESPACE/NAME[:PORT], NAME.NAMESPACE.svc[:PORT], pod/NAMESPACE/NAME[:PORT], node/NAME[:PORT] or outside[:PORT]; a Service stands for its ClusterIPs (all its addresses: --service)'

/** Reads the destination of a filter. Reports errors to the reader. */
export function readFilterTarget(reader: FlagReader, flag: string, text: string): FilterTarget | undefined {
  const forms = `${CLIENTS}, [svc/]NAMESPACE/NAME or NAME.NAMESPACE.svc, all but a CIDR with :PORT where it matters`
  const { name, port, protocol } = splitPort(text)
  if (protocol !== undefined)
    reader.fail(flag, `${quote(text)} has a protocol, which this command does not select by`)
  const peer = readFilterPeer(reader, flag, { text: name, forms })
  if (peer === undefined) return undefined
  if (port !== '' && peer.kind !== 'service' && !isPort(Number(port)))
    reader.fail(flag, `${quote(text)} has no port from 1 to 65535`)
  return { peer, port }
}

function readFilterPeer(
  reader: FlagReader,
  flag: string,
  { text, forms }: { readonly text: string; readonly forms: string },
): FilterPeer | undefined {
  const cidr = parseCidr(text)
  if (cidr !== undefined) return { kind: 'cidr', cidr }
  const isCidr = text.includes('/') && parseIp(text.slice(0, text.indexOf('/'))) !== undefined
  const peer = isCidr ? undefined : parsePeer(text)
  if (peer?.kind === 'address') return { kind: 'cidr', cidr: hostCidr(peer.ip) }
  if (peer !== undefined) return peer
  reader.fail(flag, `${quote(text)} is ${isCidr ? whyNotCidr(text) : whyNotPeer(text)}; give ${forms}`)
  return undefined
}

/** A peer whose addresses only the daemon knows. */
type Unresolved = Exclude<FilterPeer, { readonly kind: 'cidr' }>

interface Known {
  readonly snapshot: Snapshot
  readonly flags: FlagTexts
}

async function readKnown(socket: string, peer: Unresolved): Promise<Known> {
  const what =
    peer.kind === 'outside' ? 'the addresses of the cluster' : `the address of ${peer.kind} ${peer.key}`
  const flags = await checkDaemon(socket, { otherwise: false })
  if (flags === undefined)
    throw new Error(`no daemon answers at ${socket}, and only the daemon knows ${what}; give addresses`)
  return { snapshot: finish(readSnapshotJson(await askObjects(socket))), flags }
}

function addressesOf(peer: Unresolved, known: Known): IpFilter {
  if (peer.kind === 'outside') return outsideOf(known)
  const ips = [...new Set(ipsOf(peer, known.snapshot))]
  if (ips.length === 0) throw new Error(whyNoAddress(peer, known.snapshot, undefined))
  return these(ips.map(hostCidr))
}

function servicePort(key: string, name: string, { snapshot }: Known): number {
  const { ports } = serviceAt(snapshot, key)
  const found = ports.find(port => port.name === name)
  if (found !== undefined) return found.port
  throw new Error(`Service ${key} has no port ${quote(name)}; its ports are ${portsText(ports)}`)
}

function these(cidrs: readonly Cidr[]): IpFilter {
  return { cidrs, ips: new Set(), isExcept: false }
}

/** Addresses of every machine, which never belong to a client outside. */
const EVERYWHERE = ['127.0.0.0/8', '::1/128', 'fe80::/10'].flatMap(text => parseCidr(text) ?? [])

/**
 * Gives every address but those of pods, Services and this Node. Throws where the daemon does not know the addresses of
 * pods: those of other nodes would count as outside.
 */
function outsideOf({ snapshot, flags }: Known): IpFilter {
  const pods = (flags['cluster-cidr'] ?? '').split(',').flatMap(text => parseCidr(text) ?? [])
  if (pods.length === 0)
    throw new Error(
      'outside: without --cluster-cidr the daemon cannot distinguish pods of other nodes from clients outside; give a CIDR',
    )
  const { node, services, sliceByKey, serviceCidrs, localIps } = snapshot
  const cidrs = [...EVERYWHERE, ...pods, ...(node?.podCidrs ?? []), ...[...serviceCidrs.values()].flat()]
  const ips = new Set([
    ...(node?.ips ?? []),
    ...localIps,
    ...services.values().flatMap(each => [...each.clusterIps, ...each.externalIps, ...each.loadBalancerIps]),
    ...sliceByKey.values().flatMap(({ endpoints }) => endpoints.map(({ ip }) => ip)),
  ])
  return { cidrs, ips: new Set([...ips].filter(ip => !anyContains(cidrs, ip))), isExcept: true }
}

/** `80/TCP (http), 53/UDP`. */
export function portsText(ports: readonly Pick<ServicePortSpec, 'name' | 'port' | 'protocol'>[]): string {
  const texts = ports.map(
    ({ name, port, protocol }) => `${port}/${protocol}${name === '' ? '' : ` (${name})`}`,
  )
  return texts.length === 0 ? 'none' : texts.join(', ')
}

/** Completes a name, with or without a port. */
export function inNamespace(text: string, namespace: string): string {
  const [, name = text, port = ''] = /^([a-z][^:]*)(:.*)$/.exec(text) ?? []
  return withNamespace(name, namespace) + port
}

/** Reads a peer; undefined where the flag is not given. Completes its name by the namespace. */
export function given<T>(
  reader: FlagReader,
  name: string,
  read: (reader: FlagReader, flag: string, text: string) => T | undefined,
  namespace = '',
): T | undefined {
  const given = reader.text(name) ?? ''
  const text = namespace === '' ? given : inNamespace(given, namespace)
  return text === '' ? undefined : read(reader, `--${name}`, text)
}

/** Reports a destination of a family that none of the clients has, where all of them are addresses. */
export function checkAddresses(
  reader: FlagReader,
  from: readonly FilterPeer[],
  to: FilterTarget | undefined,
): void {
  const cidrs = from.flatMap(peer => (peer.kind === 'cidr' ? peer.cidr : []))
  if (to?.peer.kind !== 'cidr' || cidrs.length < from.length) return
  const problem = familyProblem(cidrs, [to.peer.cidr])
  if (problem !== undefined) reader.fail('--to', problem)
}

function checkResolved(from: readonly IpFilter[], to: TargetFilter): void {
  if (to.addresses.isExcept || from.some(({ isExcept }) => isExcept)) return
  const problem = familyProblem(
    from.flatMap(({ cidrs }) => cidrs),
    to.addresses.cidrs,
  )
  if (problem !== undefined) throw new Error(`--to ${problem}`)
}

function familyProblem(from: readonly Cidr[], to: readonly Cidr[]): string | undefined {
  if (from.length === 0) return undefined
  const [own = [], its = []] = [from, to].map(cidrs => [...new Set(cidrs.map(({ ip }) => familyOf(ip)))])
  return own.some(family => its.includes(family))
    ? undefined
    : `is ${its.join(' and ')} while --from is ${own.join(' and ')}`
}

export interface Peers {
  /** Each selects clients; empty for all. */
  readonly from: readonly IpFilter[]
  readonly to: TargetFilter | undefined
}

interface NamedPeers {
  readonly from: readonly FilterPeer[]
  readonly to: FilterTarget | undefined
  readonly adminSocket: string
  readonly proxyName: string | undefined
}

/**
 * Resolves the names of a request. Reads the objects of the daemon only where there is a name. Throws where no daemon of
 * this version answers or it has not read all objects yet, for a name that no object has, and without a common family.
 */
export async function resolvePeers({ from, to, adminSocket, proxyName }: NamedPeers): Promise<Peers> {
  const socket = adminSocket || defaultAdminSocket(proxyName)
  let known: Known | undefined
  const read = async (peer: Unresolved) => {
    known ??= await readKnown(socket, peer)
    return known
  }
  const addresses = async (peer: FilterPeer) =>
    peer.kind === 'cidr' ? these([peer.cidr]) : addressesOf(peer, await read(peer))
  const clients: IpFilter[] = []
  for (const peer of from) clients.push(await addresses(peer))
  if (to === undefined) return { from: clients, to }
  const { peer, port } = to
  const isName = port !== '' && peer.kind === 'service' && !isPort(Number(port))
  const number = isName ? servicePort(peer.key, port, await read(peer)) : Number(port)
  const target = { addresses: await addresses(peer), port: port === '' ? undefined : number }
  checkResolved(clients, target)
  return { from: clients, to: target }
}
