import { type Family, familyOf, type Ip } from '../../base/ip.ts'
import { PROTOCOL_NUMBERS } from '../../base/ip-packet.ts'
import { type FlagReader, type FlagSpec, flag, flags, quote } from '../../config/flag.ts'
import { isPort } from '../../model/fields.ts'
import type { Protocol, Service, ServiceKey, ServicePortSpec } from '../../model/service.ts'
import type { Snapshot } from '../../model/snapshot.ts'
import { NAMESPACE_FLAG, readNamespace } from '../model-request.ts'
import {
  ipOf,
  type Peer,
  parsePeer,
  podEndpoints,
  portsText,
  serviceAt,
  splitPort,
  whyNotPeer,
  withNamespace,
} from '../peers.ts'
import { OUTSIDE_CLIENT } from '../programmed.ts'

/** The question of `kprobe explain` as given, with names in place of addresses. */
export interface NamedQuestion {
  /** `here`: a process of this node. */
  readonly from: Peer | { readonly kind: 'here' }
  readonly to: Peer
  /** A number, or the name of a service port; empty if not given. */
  readonly port: string
  /** Undefined if not given: the protocol of the service port applies. */
  readonly protocol: Protocol | undefined
  readonly interfaceName: string | undefined
}

/** The question with addresses in place of names. */
export interface Question {
  readonly from: Ip
  readonly to: Ip
  readonly port: number
  readonly protocol: { readonly name: Protocol; readonly number: number }
  readonly interfaceName: string | undefined
  /** The Service that the target names; undefined where it is an address. */
  readonly service?: ServiceKey
  /** The other node whose pod is the client; undefined for clients of this node, and for those of no node. */
  readonly fromOtherNode?: string | undefined
  /** Ports of the target Service with the same name or number, and another protocol. */
  readonly alike?: readonly Pick<ServicePortSpec, 'name' | 'port' | 'protocol'>[]
  /** The address of the client stands for all clients outside of the cluster. */
  readonly isFromOutside?: true
}

export const QUESTION_FLAGS: readonly FlagSpec[] = [
  ...flags({
    '--from CLIENT':
      'client; unset: a process of this node. An address, pod/NAMESPACE/NAME, node/NAME or outside (a client outside the cluster, to an address that it can reach, if the Service has one); an address of this Node, or its name, stands for one of its processes (in IPVS mode its source is the Service address, which is bound here)',
    '--to TARGET': [
      'destination: ADDRESS:PORT, [svc/]NAMESPACE/SERVICE[:PORT], SERVICE.NAMESPACE[.svc][:PORT], pod/NAMESPACE/NAME:PORT or node/NAME:PORT; a port of a Service is a number or a name, and PORT/PROTOCOL, as `kprobe dump` prints it, is short for --proto',
      { namesService: true },
    ],
    '--proto PROTOCOL': [
      'tcp, udp or sctp; unset: the protocol of the Service port, or tcp',
      {
        choices: ['tcp', 'udp', 'sctp'],
        check: reader => parseProtocol(reader, '--proto', reader.text('proto')),
      },
    ],
  }),
  {
    ...NAMESPACE_FLAG,
    help: 'namespace of pods and Services that are named without one: svc/NAME, pod/NAME',
  },
  flag('--interface NAME', 'interface that the packet arrives at, when pods are recognized by interface'),
]

export function readQuestion(reader: FlagReader): NamedQuestion | undefined {
  const namespace = readNamespace(reader)
  const client = withNamespace(reader.text('from') ?? '', namespace)
  const from = client === '' ? ({ kind: 'here' } as const) : readPeer(reader, '--from', client)
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

function readProtocol(reader: FlagReader, behindPort: string | undefined): Protocol | undefined {
  const flag = parseProtocol(reader, '--proto', reader.text('proto'))
  const own = parseProtocol(reader, '--to', behindPort)
  if (flag !== undefined && own !== undefined && flag !== own)
    reader.fail('--proto', `is ${flag} while --to has ${own}`)
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

const CLIENT_FORMS = 'an address, pod/NAMESPACE/NAME, node/NAME or outside'

const FORMS = {
  '--from': `give ${CLIENT_FORMS}`,
  '--to':
    'give ADDRESS:PORT, NAMESPACE/SERVICE[:PORT], SERVICE.NAMESPACE[.svc][:PORT], pod/NAMESPACE/NAME:PORT or node/NAME:PORT',
} as const

function readPeer(reader: FlagReader, flag: keyof typeof FORMS, text: string): Peer | undefined {
  const peer = parsePeer(text)
  if (peer !== undefined) return peer
  const problem = text === '' ? 'is required' : `${quote(text)} is ${whyNotPeer(text)}`
  reader.fail(flag, `${problem}; ${FORMS[flag]}`)
  return undefined
}

export function resolveQuestion(question: NamedQuestion, snapshot: Snapshot): Question {
  const { from, to, interfaceName } = question
  const service = to.kind === 'service' ? serviceAt(snapshot, to.key) : undefined
  const port = service === undefined ? undefined : portOf(question, service)
  const outer =
    from.kind !== 'outside' || service === undefined || port === undefined
      ? undefined
      : outerFrontend(service, port, snapshot)
  const known = outer === undefined ? undefined : familyOf(outer.ip)
  const source = addressOf(from, snapshot, known ?? familyOfPeer(to) ?? onlyFamily(service))
  const name = question.protocol ?? port?.protocol ?? 'TCP'
  return {
    from: source,
    to: outer?.ip ?? addressOf(to, snapshot, familyOf(source)),
    port: outer?.port ?? port?.port ?? Number(question.port),
    protocol: { name, number: PROTOCOL_NUMBERS[name] },
    interfaceName,
    ...(service === undefined ? {} : { service: service.key }),
    ...(port?.alike === undefined || port.alike.length === 0 ? {} : { alike: port.alike }),
    ...(from.kind === 'outside' ? { isFromOutside: true } : {}),
    ...(from.kind === 'pod' ? { fromOtherNode: otherNodeOf(snapshot, from.key) } : {}),
  }
}

function familyOfPeer(peer: Peer): Family | undefined {
  return peer.kind === 'address' ? familyOf(peer.ip) : undefined
}

function onlyFamily(service: Service | undefined): Family | undefined {
  const [first, ...others] = new Set(service?.clusterIps.map(familyOf))
  return others.length === 0 ? first : undefined
}

function addressOf(peer: NamedQuestion['from'], snapshot: Snapshot, family: Family | undefined): Ip {
  switch (peer.kind) {
    case 'address':
      return peer.ip
    case 'here':
      return hereOf(snapshot, family ?? 'IPv4')
    case 'outside':
      return OUTSIDE_CLIENT[family ?? 'IPv4']
    case 'pod':
    case 'node':
    case 'service':
      return ipOf(peer, snapshot, family)
  }
}

/** Gives the address of a process of this node: that of the Node, or of the loopback interface where the Node is unknown. */
function hereOf({ node }: Snapshot, family: Family): Ip {
  return node?.ips.find(ip => familyOf(ip) === family) ?? LOOPBACK[family]
}

const LOOPBACK: Readonly<Record<Family, Ip>> = { IPv4: '\x7f\0\0\x01', IPv6: `${'\0'.repeat(15)}\x01` }

/** Finds where clients outside reach a port of a Service: the addresses of load balancers first, node ports last. */
function outerFrontend(
  { loadBalancerIps, externalIps, ports }: Service,
  { port, protocol }: Pick<ServicePortSpec, 'port' | 'protocol'>,
  { node }: Snapshot,
): { readonly ip: Ip; readonly port: number } | undefined {
  const spec = ports.find(each => each.port === port && each.protocol === protocol)
  if (spec === undefined) return undefined
  const [ip] = [...loadBalancerIps, ...externalIps]
  if (ip !== undefined) return { ip, port }
  const [nodeIp] = node?.ips ?? []
  return spec.nodePort === 0 || nodeIp === undefined ? undefined : { ip: nodeIp, port: spec.nodePort }
}

/** Throws for a Service without an address: no packet has it as its destination. */
function requireAddress({ key, type, clusterIps }: Service): void {
  if (clusterIps.length > 0) return
  const why = type === 'ExternalName' ? 'of type ExternalName' : 'headless'
  throw new Error(`Service ${key} is ${why}: it has no address and no rule`)
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

/** Gives the name of the node that a pod runs on; undefined for this node, and if it is unknown. */
function otherNodeOf(snapshot: Snapshot, key: string): string | undefined {
  const name = podEndpoints(snapshot, key)[0]?.traits.nodeName ?? ''
  const own = snapshot.node?.name
  return name === '' || own === undefined || name === own ? undefined : name
}
