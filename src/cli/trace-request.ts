import { type Cidr, familyOf, type IpFilter } from '../base/ip.ts'
import { type FlagReader, type FlagSpec, flag, flags, quote } from '../config/flag.ts'
import { ADMIN_SOCKET_FLAG } from '../config/flag-tables.ts'
import { INSTANCE_FLAG, readInstanceName, readSocketPath } from '../config/own-flags.ts'
import {
  FilterNames,
  type FilterPeer,
  type FilterTarget,
  readFilterClient,
  readFilterTarget,
  type TargetFilter,
} from './peers.ts'

const OUTPUTS = ['text', 'json'] as const
const COUNT = { min: 1, max: 100_000, fallback: 100 } as const
const RATE = { min: 1, max: 1_000, fallback: 20 } as const
const DURATION = { minMs: 1, maxMs: 3_600_000, fallbackMs: 30_000 } as const

/** The flags of all commands that print packets. */
export const PACKET_FLAGS = {
  service: flag(
    '--service NAMESPACE/NAME[:PORT]',
    'only packets to this Service, at all its addresses and node ports; a port is a name, as `kprobe dump` prints it',
    { namesService: true },
  ),
  from: flag(
    '--from CLIENT',
    'only packets from this client: an address, a CIDR, pod/NAMESPACE/NAME, node/NAME (this node), or outside: every address but those of pods, Services and this node',
  ),
  to: flag(
    '--to TARGET',
    'only packets to this destination: ADDRESS[:PORT], [ADDRESS]:PORT, CIDR, [svc/]NAMESPACE/NAME[:PORT], NAME.NAMESPACE.svc[:PORT], pod/NAMESPACE/NAME[:PORT], node/NAME[:PORT] or outside[:PORT]; a Service stands for its ClusterIPs (all its addresses: --service)',
    { namesService: true },
  ),
  count: flag(`--count N = ${COUNT.fallback}`, `end after so many packets, 1 to ${COUNT.max}`),
  duration: flag('--duration DURATION = 30s', 'end after this time, at most 1h'),
  output: flag('-o, --output FORMAT = text', 'text, or json: one object a line', { choices: OUTPUTS }),
} as const satisfies Readonly<Record<string, FlagSpec>>

export const TRACE_FLAGS: readonly FlagSpec[] = [
  PACKET_FLAGS.service,
  PACKET_FLAGS.from,
  PACKET_FLAGS.to,
  ...flags({
    '--reject-only': 'print only packets that are rejected, dropped or lost; --count counts only these',
    '--all-packets': 'trace every packet of TCP, and not only those that open a connection',
  }),
  PACKET_FLAGS.count,
  PACKET_FLAGS.duration,
  flag(
    `--rate N = ${RATE.fallback}`,
    `packets a second in each address family that the kernel traces at most, 1 to ${RATE.max}`,
  ),
  {
    ...ADMIN_SOCKET_FLAG,
    help: 'unix socket of the daemon, which knows which Service an IPVS object belongs to, and the addresses of names; unset: the usual one, for names alone',
  },
  INSTANCE_FLAG,
  PACKET_FLAGS.output,
]

/** What all commands that print packets are asked. */
export type PacketRequest = ReturnType<typeof readPacketRequest>

/** Reads the flags of PacketRequest. Reports errors to the reader. */
export function readPacketRequest(reader: FlagReader) {
  const service = reader.text('service') ?? ''
  if (service !== '' && !/^[^/:]+\/[^/:]+(?::[^/:]*)?$/.test(service))
    reader.fail('--service', `${quote(service)} is not written NAMESPACE/NAME or NAMESPACE/NAME:PORT`)
  const from = given(reader, 'from', readFilterClient)
  const to = given(reader, 'to', readFilterTarget)
  checkAddresses(reader, from === undefined ? [] : [from], to)
  return {
    service,
    from,
    to,
    packets: reader.integer('count', COUNT),
    durationMs: reader.durationMs('duration', DURATION),
    output: reader.oneOf('output', OUTPUTS, 'text'),
    proxyName: readInstanceName(reader),
  }
}

/** What `kprobe trace` is asked. */
export type TraceRequest = ReturnType<typeof readTraceRequest>

/** Reads the flags. Reports errors to the reader. */
export function readTraceRequest(reader: FlagReader) {
  return {
    ...readPacketRequest(reader),
    rejectOnly: reader.bool('reject-only'),
    allPackets: reader.bool('all-packets'),
    perSecond: reader.integer('rate', RATE),
    adminSocket: readSocketPath(reader),
  }
}

/** Reads a peer; undefined where the flag is not given. */
export function given<T>(
  reader: FlagReader,
  name: string,
  read: (reader: FlagReader, flag: string, text: string) => T | undefined,
): T | undefined {
  const text = reader.text(name) ?? ''
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

/** Throws for a destination without a family of the clients. */
export function checkResolved(from: readonly IpFilter[], to: TargetFilter): void {
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

/** The peers of a request; undefined for all. */
export interface Peers {
  readonly from: IpFilter | undefined
  readonly to: TargetFilter | undefined
}

/** Resolves the names of a request. Throws for a name that no object has, and without a common family. */
export async function resolvePeers({
  from,
  to,
  adminSocket,
  proxyName,
}: Pick<TraceRequest, 'from' | 'to' | 'adminSocket' | 'proxyName'>): Promise<Peers> {
  const names = new FilterNames({ adminSocket, proxyName })
  const clients = from && (await names.addresses(from))
  if (to === undefined) return { from: clients, to: undefined }
  const target = await names.target(to)
  checkResolved(clients === undefined ? [] : [clients], target)
  return { from: clients, to: target }
}
