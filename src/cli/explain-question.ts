import { type Family, familyOf, type Ip, parseIp, whyNotIp } from '../base/ip.ts'
import { nearest } from '../base/text.ts'
import { type FlagReader, type FlagSpec, quote } from '../config/flag.ts'
import { IPPROTO_SCTP, IPPROTO_TCP, IPPROTO_UDP } from '../kernel/nft/constants.ts'
import { isPort } from '../model/fields.ts'
import type { Endpoint, Protocol, Service, ServicePortSpec } from '../model/service.ts'
import type { Snapshot } from '../model/snapshot.ts'
import { OUTSIDE_CLIENT } from './programmed.ts'
import { NAMESPACE_FLAG, readNamespace } from './request.ts'

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
  /** `namespace/name`, or the name of a Node. */
  | { readonly kind: 'service' | 'pod' | 'node'; readonly key: string }
  /** Any client outside the cluster. */
  | { readonly kind: 'outside' }

/** The question with addresses in place of names. */
export interface Question {
  readonly from: Ip
  readonly to: Ip
  readonly port: number
  readonly protocol: { readonly name: Protocol; readonly number: number }
  readonly interfaceName: string | undefined
  /** The other node whose pod is the client; undefined for clients of this node, and for those of no node. */
  readonly fromOtherNode?: string | undefined
  /** Ports of the target Service with the same name or number, and another protocol. */
  readonly alike?: readonly Pick<ServicePortSpec, 'name' | 'port' | 'protocol'>[]
  /** The address of the client stands for all clients outside of the cluster. */
  readonly isFromOutside?: true
}

/** The flags of a question. */
export const QUESTION_FLAGS: readonly FlagSpec[] = [
  {
    name: 'from',
    kind: 'text',
    placeholder: 'CLIENT',
    help: 'client: an address, pod/NAMESPACE/NAME, node/NAME or outside (a client outside the cluster); an address of this Node, or its name, stands for one of its processes (in IPVS mode its source is the Service address, which is bound here)',
  },
  {
    name: 'to',
    kind: 'text',
    placeholder: 'TARGET',
    namesService: true,
    help: 'destination: ADDRESS:PORT, [svc/]NAMESPACE/SERVICE[:PORT], SERVICE.NAMESPACE[.svc][:PORT], pod/NAMESPACE/NAME:PORT or node/NAME:PORT; a port of a Service is a number or a name, and PORT/PROTOCOL, as `kprobe dump` prints it, is short for --proto',
  },
  {
    name: 'proto',
    kind: 'text',
    placeholder: 'PROTOCOL',
    help: 'tcp, udp or sctp; unset: the protocol of the Service port, or tcp',
  },
  {
    ...NAMESPACE_FLAG,
    help: 'namespace of pods and Services that are named without one: svc/NAME, pod/NAME',
  },
  {
    name: 'interface',
    kind: 'text',
    placeholder: 'NAME',
    help: 'interface that the packet arrives at, when pods are recognized by interface',
  },
]

const PROTOCOL_NUMBERS: Readonly<Record<Protocol, number>> = {
  TCP: IPPROTO_TCP,
  UDP: IPPROTO_UDP,
  SCTP: IPPROTO_SCTP,
}

/** Reads the question. Reports errors to the reader, and gives undefined then. */
export function readQuestion(reader: FlagReader): NamedQuestion | undefined {
  const namespace = readNamespace(reader)
  const from = readPeer(reader, '--from', withNamespace(reader.text('from') ?? '', namespace))
  const target = splitPort(reader.text('to') ?? '')
  const to = readPeer(reader, '--to', withNamespace(target.name, namespace))
  if (from?.kind === 'service') reader.fail('--from', `a client is ${CLIENT_FORMS}`)
  if (to?.kind === 'outside') reader.fail('--to', FORMS['--to'])
  const isPlace = to?.kind === 'address' || to?.kind === 'pod' || to?.kind === 'node'
  if (isPlace && !isPort(Number(target.port)))
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

/** Completes `svc/NAME`, `pod/NAME` and the bare name of a Service. */
function withNamespace(text: string, namespace: string): string {
  if (namespace === '' || text === 'outside') return text
  return text.replace(
    /^(?:(svc\/|service\/|pod\/)([a-z0-9][a-z0-9.-]*)|([a-z][a-z0-9-]*))$/,
    (_, kind, name, bare) => (bare === undefined ? `${kind}${namespace}/${name}` : `${namespace}/${bare}`),
  )
}

const NAME_FORMS =
  /^(?:node\/(?<node>[^/]+)|(?:(?:svc|service)\/)?(?<service>[^/]+\/[^/]+)|pod\/(?<pod>[^/]+\/[^/]+)|(?<outside>outside)|(?<dns>[^./]+\.[^./]+(?=\.svc(?:\.|$))|[a-z][^./]*\.[^./]+)(?:\.svc(?:\.[^/]*)?)?)$/

const CLIENT_FORMS = 'an address, pod/NAMESPACE/NAME, node/NAME or outside'

const FORMS = {
  '--from': `give ${CLIENT_FORMS}`,
  '--to':
    'give ADDRESS:PORT, NAMESPACE/SERVICE[:PORT], SERVICE.NAMESPACE[.svc][:PORT], pod/NAMESPACE/NAME:PORT or node/NAME:PORT',
} as const

function readPeer(reader: FlagReader, flag: keyof typeof FORMS, text: string): Peer | undefined {
  const ip = parseIp(text)
  if (ip !== undefined) return { kind: 'address', ip }
  const { service, pod, node, outside, dns } = NAME_FORMS.exec(text)?.groups ?? {}
  if (service !== undefined) return { kind: 'service', key: service }
  if (pod !== undefined) return { kind: 'pod', key: pod }
  if (node !== undefined) return { kind: 'node', key: node }
  if (outside !== undefined) return { kind: 'outside' }
  if (dns !== undefined) return { kind: 'service', key: dns.split('.').reverse().join('/') }
  const problem = text === '' ? 'is required' : `${quote(text)} is ${whyNotIp(text)}`
  reader.fail(flag, `${problem}; ${FORMS[flag]}`)
  return undefined
}

/** Resolves the names. Throws for a name that no object has. */
export function resolveQuestion(question: NamedQuestion, snapshot: Snapshot): Question {
  const { from, to, interfaceName } = question
  const service = to.kind === 'service' ? serviceAt(snapshot, to.key) : undefined
  const port = service === undefined ? undefined : portOf(question, service)
  const source = addressOf(from, snapshot, familyOfPeer(to) ?? onlyFamily(service))
  const name = question.protocol ?? port?.protocol ?? 'TCP'
  return {
    from: source,
    to: addressOf(to, snapshot, familyOf(source)),
    port: port?.port ?? Number(question.port),
    protocol: { name, number: PROTOCOL_NUMBERS[name] },
    interfaceName,
    ...(port?.alike === undefined || port.alike.length === 0 ? {} : { alike: port.alike }),
    ...(from.kind === 'outside' ? { isFromOutside: true } : {}),
    ...(from.kind === 'pod' ? { fromOtherNode: otherNodeOf(snapshot, from.key) } : {}),
  }
}

function familyOfPeer(peer: Peer): Family | undefined {
  return peer.kind === 'address' ? familyOf(peer.ip) : undefined
}

/** Gives the family of all addresses of a Service. */
function onlyFamily(service: Service | undefined): Family | undefined {
  const [first, ...others] = new Set(service?.clusterIps.map(familyOf))
  return others.length === 0 ? first : undefined
}

function addressOf(peer: Peer, snapshot: Snapshot, family: Family | undefined): Ip {
  switch (peer.kind) {
    case 'address':
      return peer.ip
    case 'outside':
      return OUTSIDE_CLIENT[family ?? 'IPv4']
    case 'pod':
      return podIp(snapshot, peer.key, family)
    case 'node':
      return nodeIp(snapshot, peer.key, family)
    case 'service': {
      const service = serviceAt(snapshot, peer.key)
      const ip = service.clusterIps.find(each => familyOf(each) === family)
      if (ip !== undefined) return ip
      throw new Error(`Service ${peer.key} has no ${family} address`)
    }
  }
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
): Pick<ServicePortSpec, 'port' | 'protocol'> & Pick<Question, 'alike'> {
  requireAddress(service)
  const { key, ports } = service
  const named = ports.filter(each => protocol === undefined || each.protocol === protocol)
  const [found, ...alike] = named.filter(each => text === each.name || text === `${each.port}`)
  if (text !== '' && found !== undefined) return { ...found, alike }
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
function podIp(snapshot: Snapshot, key: string, family: Family | undefined): Ip {
  const found = podEndpoints(snapshot, key).find(({ ip }) => family === undefined || familyOf(ip) === family)
  if (found !== undefined) return found.ip
  const which = family === undefined ? 'address' : `${family} address`
  const near = nearest(key, podKeys(snapshot))
  const hint = near === undefined || near === key ? '' : `; did you mean ${near}?`
  throw new Error(
    `no EndpointSlice has an ${which} of pod ${key}; give its address: kubectl get pod -o wide${hint}`,
  )
}

/** Gives the name of the node that a pod runs on; undefined for this node, and if it is unknown. */
function otherNodeOf(snapshot: Snapshot, key: string): string | undefined {
  const name = podEndpoints(snapshot, key)[0]?.traits.nodeName ?? ''
  const own = snapshot.node?.name
  return name === '' || own === undefined || name === own ? undefined : name
}

function podEndpoints({ sliceByKey }: Snapshot, key: string): readonly Endpoint[] {
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

/** Finds the address of this Node: kprobe reads no others. */
function nodeIp({ node }: Snapshot, name: string, family: Family | undefined): Ip {
  if (node === undefined)
    throw new Error(`the Node of this machine is not known; give the address of ${name}`)
  if (node.name !== name)
    throw new Error(
      `Node ${quote(name)} is not known here, only ${node.name}, the Node of this machine; give its address`,
    )
  const ip = node.ips.find(each => family === undefined || familyOf(each) === family)
  if (ip !== undefined) return ip
  throw new Error(`Node ${name} has no ${family === undefined ? '' : `${family} `}address`)
}
