import { type Cidr, familyOf, hostCidr, parseCidr, parseIp, whyNotIp } from '../base/ip.ts'
import { type FlagReader, type FlagSpec, quote } from '../config/flag.ts'
import { ADMIN_SOCKET_FLAG } from '../config/flag-tables.ts'
import { INSTANCE_FLAG, readInstanceName, readSocketPath } from '../config/own-flags.ts'
import { isPort } from '../model/fields.ts'
import type { TraceMatch } from '../modes/common/trace-table.ts'

const OUTPUTS = ['text', 'json'] as const
const COUNT = { min: 1, max: 100_000, fallback: 100 } as const
const RATE = { min: 1, max: 1_000, fallback: 20 } as const
const DURATION = { minMs: 1, maxMs: 3_600_000, fallbackMs: 30_000 } as const

/** The flags of all commands that print packets. */
export const PACKET_FLAGS = {
  service: {
    name: 'service',
    kind: 'text',
    placeholder: 'NAMESPACE/NAME[:PORT]',
    help: 'only packets to this Service, at all its addresses and node ports; a port is a name, as `kprobe dump` prints it',
    namesService: true,
  },
  from: {
    name: 'from',
    kind: 'text',
    placeholder: 'ADDRESS',
    help: 'only packets from this address or CIDR',
  },
  count: {
    name: 'count',
    kind: 'integer',
    placeholder: 'N',
    default: `${COUNT.fallback}`,
    help: `end after so many packets, 1 to ${COUNT.max}`,
  },
  duration: {
    name: 'duration',
    kind: 'duration',
    placeholder: 'DURATION',
    default: '30s',
    help: 'end after this time, at most 1h',
  },
  output: {
    name: 'output',
    short: 'o',
    kind: 'text',
    placeholder: 'FORMAT',
    default: 'text',
    choices: OUTPUTS,
    help: 'text, or json: one object a line',
  },
} as const satisfies Readonly<Record<string, FlagSpec>>

/** The flags of `kprobe trace`. */
export const TRACE_FLAGS: readonly FlagSpec[] = [
  PACKET_FLAGS.service,
  PACKET_FLAGS.from,
  {
    name: 'to',
    kind: 'text',
    placeholder: 'ADDRESS',
    help: 'only packets to this address or CIDR: ADDRESS, ADDRESS:PORT, [ADDRESS]:PORT or CIDR',
  },
  {
    name: 'reject-only',
    kind: 'bool',
    help: 'print only packets that are rejected, dropped or lost; --count counts only these',
  },
  {
    name: 'all-packets',
    kind: 'bool',
    help: 'trace every packet of TCP, and not only those that open a connection',
  },
  PACKET_FLAGS.count,
  PACKET_FLAGS.duration,
  {
    name: 'rate',
    kind: 'integer',
    placeholder: 'N',
    default: `${RATE.fallback}`,
    help: `packets a second in each address family that the kernel traces at most, 1 to ${RATE.max}`,
  },
  {
    ...ADMIN_SOCKET_FLAG,
    help: 'unix socket of the daemon, which knows which Service an IPVS object belongs to; unset: none',
  },
  INSTANCE_FLAG,
  PACKET_FLAGS.output,
]

/** What all commands that print packets are asked. */
export interface PacketRequest {
  /** Empty for all Services. */
  readonly service: string
  readonly from: Cidr | undefined
  readonly packets: number
  readonly durationMs: number
  readonly output: (typeof OUTPUTS)[number]
  readonly proxyName: string | undefined
}

/** Reads the flags of PacketRequest. Reports errors to the reader. */
export function readPacketRequest(reader: FlagReader): PacketRequest {
  const service = reader.text('service') ?? ''
  if (service !== '' && !/^[^/:]+\/[^/:]+(?::[^/:]*)?$/.test(service))
    reader.fail('--service', `${quote(service)} is not written NAMESPACE/NAME or NAMESPACE/NAME:PORT`)
  return {
    service,
    from: readPeer(reader, 'from'),
    packets: reader.integer('count', COUNT),
    durationMs: reader.durationMs('duration', DURATION),
    output: reader.oneOf('output', OUTPUTS, 'text'),
    proxyName: readInstanceName(reader),
  }
}

/** What `kprobe trace` is asked. */
export interface TraceRequest extends PacketRequest {
  readonly to: TraceMatch['to']
  readonly rejectOnly: boolean
  readonly allPackets: boolean
  readonly perSecond: number
  readonly adminSocket: string
}

/** Reads the flags. Reports errors to the reader. */
export function readTraceRequest(reader: FlagReader): TraceRequest {
  const packets = readPacketRequest(reader)
  const { from } = packets
  const to = readTarget(reader)
  if (from !== undefined && to !== undefined && familyOf(from.ip) !== familyOf(to.cidr.ip))
    reader.fail('--to', `is ${familyOf(to.cidr.ip)} while --from is ${familyOf(from.ip)}`)
  return {
    ...packets,
    to,
    rejectOnly: reader.bool('reject-only'),
    allPackets: reader.bool('all-packets'),
    perSecond: reader.integer('rate', RATE),
    adminSocket: readSocketPath(reader),
  }
}

function readPeer(reader: FlagReader, flag: 'from' | 'to'): Cidr | undefined {
  const text = reader.text(flag) ?? ''
  const ip = parseIp(text)
  const found = ip === undefined ? parseCidr(text) : hostCidr(ip)
  if (text !== '' && found === undefined)
    reader.fail(`--${flag}`, `${quote(text)} is ${whyNotIp(text)}; give an address or a CIDR`)
  return found
}

function readTarget(reader: FlagReader): TraceMatch['to'] {
  const text = reader.text('to') ?? ''
  const [, bracketed, plain, digits] = /^(?:\[([^\]]*)\]|([^:]*)):(\d+)$/.exec(text) ?? []
  const ip = digits === undefined ? undefined : parseIp(bracketed ?? plain ?? '')
  if (ip !== undefined) {
    const port = Number(digits)
    if (!isPort(port)) reader.fail('--to', `${quote(text)} has no port from 1 to 65535`)
    return { cidr: hostCidr(ip), port }
  }
  const cidr = readPeer(reader, 'to')
  return cidr === undefined ? undefined : { cidr, port: undefined }
}
