import { type Family, familyOf, type Ip, parseIp, whyNotIp } from '../base/ip.ts'
import { nearest } from '../base/text.ts'
import { type FlagReader, quote } from '../config/flag.ts'
import { IPPROTO_SCTP, IPPROTO_TCP, IPPROTO_UDP } from '../kernel/nft/constants.ts'
import { isPort } from '../model/fields.ts'
import type { Protocol, Service, ServicePortSpec } from '../model/service.ts'
import type { Snapshot } from '../model/snapshot.ts'

/** The question of `kprobe explain` as given, with names in place of addresses. */
interface NamedQuestion {
  readonly from: Peer
  readonly to: Peer
  /** A number, or the name of a service port; empty if not given. */
  readonly port: string
  /** Undefined if not given: the protocol of the service port applies. */
  readonly protocol: Protocol | undefined
  readonly interfaceName: string | undefined
}

type Peer =
  | { readonly kind: 'address'; readonly ip: Ip }
  /** `namespace/name`. */
  | { readonly kind: 'service' | 'pod'; readonly key: string }

/** The question with addresses in place of names. */
export interface Question {
  readonly from: Ip
  readonly to: Ip
  readonly port: number
  readonly protocol: { readonly name: Protocol; readonly number: number }
  readonly interfaceName: string | undefined
}

const PROTOCOL_NUMBERS: Readonly<Record<Protocol, number>> = {
  TCP: IPPROTO_TCP,
  UDP: IPPROTO_UDP,
  SCTP: IPPROTO_SCTP,
}

/** Reads the question. Reports errors to the reader, and gives undefined then. */
export function readQuestion(reader: FlagReader): NamedQuestion | undefined {
  const from = readPeer(reader, '--from', reader.text('from') ?? '')
  const target = splitPort(reader.text('to') ?? '')
  const to = readPeer(reader, '--to', target.name)
  if (from?.kind === 'service') reader.fail('--from', 'a client is an address or pod/NAMESPACE/NAME')
  if (to !== undefined && to.kind !== 'service' && !isPort(Number(target.port)))
    reader.fail('--to', 'needs a port from 1 to 65535: ADDRESS:PORT, [ADDRESS]:PORT for IPv6')
  if (from?.kind === 'address' && to?.kind === 'address' && from.ip.length !== to.ip.length)
    reader.fail('--to', `is ${familyOf(to.ip)} while --from is ${familyOf(from.ip)}`)
  const protocol = readProtocol(reader, target.protocol)
  if (from === undefined || to === undefined) return undefined
  return { from, to, port: target.port, protocol, interfaceName: reader.text('interface') || undefined }
}

/** Reads `--proto`, or the protocol behind the port of `--to`. */
function readProtocol(reader: FlagReader, behindPort: string | undefined): Protocol | undefined {
  const flag = parseProtocol(reader, '--proto', reader.text('proto'))
  const own = parseProtocol(reader, '--to', behindPort)
  if (flag !== undefined && own !== undefined && flag !== own)
    reader.fail('--proto', `is ${flag} while --to says ${own}`)
  return flag ?? own
}

function parseProtocol(reader: FlagReader, flag: string, text: string | undefined): Protocol | undefined {
  if (text === undefined) return undefined
  const word = text.toUpperCase()
  if (isProtocol(word)) return word
  reader.fail(flag, `${quote(text)} is not one of tcp, udp, sctp`)
  return undefined
}

function isProtocol(word: string): word is Protocol {
  return Object.hasOwn(PROTOCOL_NUMBERS, word)
}

interface Target {
  readonly name: string
  readonly port: string
  readonly protocol: string | undefined
}

/**
 * Splits `[ADDRESS]:PORT`, `NAME:PORT` or `NAME`, the port with or without the protocol, as `dump` prints it. A plain
 * IPv6 address is a name without a port.
 */
function splitPort(text: string): Target {
  const [, bracketed, plain, port = '', protocol] =
    /^(?:\[(.*)\]|([^:]*))(?::([^:/]*)(?:\/([^:/]*))?)?$/.exec(text) ?? []
  return { name: bracketed ?? plain ?? text, port, protocol }
}

const NAME_FORMS =
  /^(?:(?:(?:svc|service)\/)?(?<service>[^/]+\/[^/]+)|pod\/(?<pod>[^/]+\/[^/]+)|(?<dns>[^./]+\.[^./]+(?=\.svc(?:\.|$))|[a-z][^./]*\.[^./]+)(?:\.svc(?:\.[^/]*)?)?)$/

const FORMS = {
  '--from': 'give an address or pod/NAMESPACE/NAME',
  '--to':
    'give ADDRESS:PORT, NAMESPACE/SERVICE[:PORT], SERVICE.NAMESPACE[.svc][:PORT] or pod/NAMESPACE/NAME:PORT',
} as const

function readPeer(reader: FlagReader, flag: keyof typeof FORMS, text: string): Peer | undefined {
  const ip = parseIp(text)
  if (ip !== undefined) return { kind: 'address', ip }
  const { service, pod, dns } = NAME_FORMS.exec(text)?.groups ?? {}
  if (service !== undefined) return { kind: 'service', key: service }
  if (pod !== undefined) return { kind: 'pod', key: pod }
  if (dns !== undefined) return { kind: 'service', key: dns.split('.').reverse().join('/') }
  const problem = text === '' ? 'is required' : `${quote(text)} is ${whyNotIp(text)}`
  reader.fail(flag, `${problem}; ${FORMS[flag]}`)
  return undefined
}

/** Resolves the names. Throws for a name that no object has. */
export function resolveQuestion(question: NamedQuestion, snapshot: Snapshot): Question {
  const { from, to, interfaceName } = question
  const family = familyOfPeer(to) ?? familyOfPeer(from)
  const source = from.kind === 'address' ? from.ip : podIp(snapshot, from.key, family)
  const port = to.kind === 'service' ? portOf(question, serviceAt(snapshot, to.key)) : undefined
  const name = question.protocol ?? port?.protocol ?? 'TCP'
  return {
    from: source,
    to: addressOf(to, snapshot, familyOf(source)),
    port: port?.port ?? Number(question.port),
    protocol: { name, number: PROTOCOL_NUMBERS[name] },
    interfaceName,
  }
}

function familyOfPeer(peer: Peer): Family | undefined {
  return peer.kind === 'address' ? familyOf(peer.ip) : undefined
}

function addressOf(peer: Peer, snapshot: Snapshot, family: Family): Ip {
  if (peer.kind === 'address') return peer.ip
  if (peer.kind === 'pod') return podIp(snapshot, peer.key, family)
  const service = serviceAt(snapshot, peer.key)
  const ip = service.clusterIps.find(each => familyOf(each) === family)
  if (ip !== undefined) return ip
  throw new Error(`Service ${peer.key} has no ${family} address`)
}

/** Throws for a Service without an address: no packet has it as its destination. */
function requireAddress({ key, type, clusterIps }: Service): void {
  if (clusterIps.length > 0) return
  const why = type === 'ExternalName' ? 'of type ExternalName' : 'headless'
  throw new Error(`Service ${key} is ${why}: it has no address and no rule`)
}

function serviceAt({ services }: Snapshot, key: string): Service {
  const service = services.get(key)
  if (service !== undefined) return service
  const near = nearest(key, services.keys())
  throw new Error(`no Service ${quote(key)}${near === undefined ? '' : `; did you mean ${near}?`}`)
}

/** Accepts a number that no service port has: the answer explains what happens to such a packet. */
function portOf(
  { port: text, protocol }: NamedQuestion,
  service: Service,
): Pick<ServicePortSpec, 'port' | 'protocol'> {
  requireAddress(service)
  const { key, ports } = service
  const named = ports.filter(each => protocol === undefined || each.protocol === protocol)
  const found = named.find(each => text === each.name || text === `${each.port}`)
  if (text !== '' && found !== undefined) return found
  const number = Number(text)
  if (text !== '' && isPort(number)) return { port: number, protocol: protocol ?? 'TCP' }
  const [only, ...others] = named
  if (text === '' && only !== undefined && others.length === 0) return only
  if (named.length === 0)
    throw new Error(`Service ${key} has no port${protocol === undefined ? '' : ` of ${protocol}`}`)
  const what = text === '' ? 'more than one port: add :PORT' : `no port ${quote(text)}`
  throw new Error(`Service ${key} has ${what}; its ports are ${portsText(ports)}`)
}

/** `80/TCP (http), 53/UDP`. */
export function portsText(ports: readonly Pick<ServicePortSpec, 'name' | 'port' | 'protocol'>[]): string {
  const texts = ports.map(
    ({ name, port, protocol }) => `${port}/${protocol}${name === '' ? '' : ` (${name})`}`,
  )
  return texts.length === 0 ? 'none' : texts.join(', ')
}

/** Finds the address of a pod. Only EndpointSlices name pods, so that a pod without a Service is unknown. */
function podIp({ sliceByKey }: Snapshot, key: string, family: Family | undefined): Ip {
  const slash = key.indexOf('/')
  const [namespace, name] = [key.slice(0, slash + 1), key.slice(slash + 1)]
  for (const slice of sliceByKey.values()) {
    if (!slice.key.startsWith(namespace) || (family ?? slice.family) !== slice.family) continue
    const index = slice.targetNames?.split(',').indexOf(name) ?? -1
    const endpoint = slice.endpoints[index]
    if (endpoint !== undefined) return endpoint.ip
  }
  const which = family === undefined ? 'address' : `${family} address`
  throw new Error(`no EndpointSlice has an ${which} of pod ${key}; give its address: kubectl get pod -o wide`)
}
