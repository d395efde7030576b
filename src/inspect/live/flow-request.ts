import { DEFAULT_ADMIN_SOCKET } from '../../base/api-address.ts'
import { parseIp } from '../../base/ip.ts'
import { type FlagReader, type FlagSpec, flag, flags, quote } from '../../config/flag.ts'
import { ADMIN_SOCKET_FLAG } from '../../config/flags.ts'
import { INSTANCE_FLAG, readInstanceName, readSocketPath } from '../../config/own-flags.ts'
import { isPort } from '../../model/fields.ts'
import { readNamespace } from '../model-request.ts'
import {
  checkAddresses,
  given,
  readFilterClient,
  readFilterTarget,
  resolvePeers,
  splitPort,
  TARGETS,
  withNamespace,
} from '../peers.ts'
import { NAMES_IN, readServiceFlag } from '../service-flag.ts'
import { type FlowFilter, GROUPINGS } from './flow-groups.ts'

const OUTPUTS = ['text', 'json'] as const
const LIMIT = { min: 1, max: 1_000_000, fallback: 100 } as const
const RATE = { min: 1, max: 1_000_000, fallback: 1_000 } as const
const EVENTS = { all: ['new', 'ended'], new: ['new'], ended: ['ended'] } as const
const INTERVAL = { minMs: 200, fallbackMs: 5_000 } as const

export const SERVICE_FLAG = flag('--service NAMESPACE/NAME', 'only connections to this Service', {
  namesService: true,
})

export const SOCKET_FLAG: FlagSpec = {
  ...ADMIN_SOCKET_FLAG,
  default: DEFAULT_ADMIN_SOCKET,
  help: 'unix socket of the daemon, which names the Services. Without a daemon at the default socket, the rules in the kernel name them; at a given socket that is an error',
}

export const FLOWS_FLAGS: readonly FlagSpec[] = [
  SERVICE_FLAG,
  NAMES_IN,
  ...flags({
    '--from CLIENT': [
      'only connections of these clients: addresses, CIDRs, pod/NAMESPACE/NAME, node/NAME (this node), or outside: every address but those of pods, Services and this node',
      { kind: 'list' },
    ],
    '--to TARGET': [
      `only connections to this destination, before or after the translation: ${TARGETS}`,
      { namesService: true },
    ],
    '--endpoint ADDRESS[:PORT]': 'only connections to this endpoint',
    '--protocol PROTOCOL': ['only tcp, udp or sctp', { choices: ['tcp', 'udp', 'sctp'] }],
    '-A, --all': 'connections that go to no Service, too',
    '-f, --follow': 'print connections as they begin and end',
    '--events KIND = all': [
      'with --follow: all, only new connections (half the cost), or only those that ended',
      { choices: ['all', 'new', 'ended'] },
    ],
    '--duration DURATION = 0': 'with --follow: end after this time; 0: at Ctrl-C',
    '--group-by WHAT': [
      `count connections by ${GROUPINGS.join(', ')} instead of printing each`,
      { choices: GROUPINGS },
    ],
    '--interval DURATION = 5s':
      'with --follow and --group-by: time between two tables, at least 200ms; 0: one at the end',
    [`--limit N = ${LIMIT.fallback}`]: 'maximum number of lines of a table; the rest is counted',
    [`--rate N = ${RATE.fallback}`]:
      'with --follow: maximum number of connections printed a second; the rest is counted',
  }),
  SOCKET_FLAG,
  INSTANCE_FLAG,
  flag(`-o, --output FORMAT = ${OUTPUTS[0]}`, 'text, json (an object a line)', { choices: OUTPUTS }),
]

export type FlowsRequest = ReturnType<typeof readFlowsRequest>

export function readFlowsRequest(reader: FlagReader) {
  const follow = reader.bool('follow')
  const by = GROUPINGS.find(each => each === reader.text('group-by'))
  if (by === undefined && (reader.text('group-by') ?? '') !== '')
    reader.oneOf('group-by', GROUPINGS, 'endpoint')
  for (const flag of ['duration', 'rate', 'interval', 'events'])
    if (reader.given(flag) && !follow) reader.fail(`--${flag}`, 'is for --follow')
  if (reader.given('rate') && by !== undefined) reader.fail('--rate', 'has no effect with --group-by')
  if (reader.given('interval') && by === undefined) reader.fail('--interval', 'is for --group-by')
  const namespace = readNamespace(reader)
  const from = reader
    .list('from')
    .flatMap(
      (text, index) => readFilterClient(reader, `--from[${index}]`, withNamespace(text, namespace)) ?? [],
    )
  const to = given(reader, 'to', readFilterTarget, namespace)
  checkAddresses(reader, from, to)
  return {
    filter: readFilter(reader, namespace),
    from,
    to,
    follow,
    events: EVENTS[reader.oneOf('events', ['all', 'new', 'ended'], 'all')],
    durationMs: reader.durationMs('duration', {}),
    by,
    intervalMs: readInterval(reader),
    limit: reader.integer('limit', LIMIT),
    rate: reader.integer('rate', RATE),
    output: reader.oneOf('output', OUTPUTS, 'text'),
    adminSocket: readSocketPath(reader),
    proxyName: readInstanceName(reader),
  }
}

function readInterval(reader: FlagReader): number {
  const ms = reader.durationMs('interval', { fallbackMs: INTERVAL.fallbackMs })
  if (ms > 0 && ms < INTERVAL.minMs)
    reader.fail(
      '--interval',
      `${quote(reader.text('interval') ?? '')} is shorter than 200ms; 0: one table at the end`,
    )
  return ms
}

function readFilter(reader: FlagReader, namespace: string): Omit<FlowFilter, 'from' | 'to'> {
  const protocol = reader.text('protocol') ?? ''
  const all = reader.bool('all')
  const service = readServiceFlag(reader, namespace)
  if (all && service !== '')
    reader.fail('--all', `contradicts ${service.endsWith('/') ? '--namespace' : '--service'}`)
  return {
    service,
    endpoint: readEndpoint(reader),
    protocol:
      protocol === ''
        ? undefined
        : PROTOCOLS[reader.oneOf('protocol', ['tcp', 'udp', 'sctp', 'TCP', 'UDP', 'SCTP'], 'tcp')],
    all,
  }
}

const PROTOCOLS = { tcp: 'TCP', udp: 'UDP', sctp: 'SCTP', TCP: 'TCP', UDP: 'UDP', SCTP: 'SCTP' } as const

/** Puts the addresses of clients and destination into the filter. Throws for a name that no object has, and without a common family. */
export async function withPeers(
  request: FlowsRequest,
): Promise<FlowsRequest & { readonly filter: FlowFilter }> {
  return { ...request, filter: { ...request.filter, ...(await resolvePeers(request)) } }
}

function readEndpoint(reader: FlagReader): FlowFilter['endpoint'] {
  const text = reader.text('endpoint') ?? ''
  if (text === '') return undefined
  const { name, port, protocol } = splitPort(text)
  const ip = parseIp(name)
  if (ip !== undefined && protocol === undefined) {
    if (port === '') return { ip, port: undefined }
    if (isPort(Number(port))) return { ip, port: Number(port) }
  }
  reader.fail('--endpoint', `${quote(text)} is neither ADDRESS nor ADDRESS:PORT ([ADDRESS]:PORT for IPv6)`)
  return undefined
}
