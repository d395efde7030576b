import { familyOf, formatIp, formatIpPort, type Ip, isLoopback, parseIp, whyNotIp } from '../base/ip.ts'
import type { Config } from '../config/config.ts'
import { MODEL_SOCKET_FLAG } from '../config/daemon-flags.ts'
import type { FlagSpec } from '../config/flag.ts'
import { type FlagReader, quote } from '../config/flag-reader.ts'
import { HELP_FLAG, MODEL_FLAGS, outputFlag, WITHOUT_EFFECT } from '../config/flags.ts'
import { helpText } from '../config/help.ts'
import { resolveOptions } from '../config/resolve-options.ts'
import { tracerOf } from '../daemon/open.ts'
import { IPPROTO_SCTP, IPPROTO_TCP, IPPROTO_UDP } from '../kernel/nft/constants.ts'
import type { TracePacket } from '../kernel/nft/trace-packet.ts'
import type { Way } from '../kernel/nft/trace-ways.ts'
import { explainEndpoints } from '../model/explain.ts'
import type { Frontend, FrontendTable, PortFrontends } from '../model/frontend.ts'
import type { Protocol } from '../model/service.ts'
import { type ExplainedEndpoint, type Explanation, explanationText } from './explanation-text.ts'
import { type Command, EXIT_FAILED, EXIT_FINE, type Io } from './io.ts'
import { type Loaded, withLoaded } from './load.ts'
import { FROM_DAEMON, readModelRequest } from './model-request.ts'
import { writeDocument } from './output.ts'
import { failureText, usageErrors } from './usage-errors.ts'

const OUTPUTS = ['text', 'json', 'yaml'] as const
const PROTOCOLS: Readonly<Record<string, { readonly name: Protocol; readonly number: number }>> = {
  tcp: { name: 'TCP', number: IPPROTO_TCP },
  udp: { name: 'UDP', number: IPPROTO_UDP },
  sctp: { name: 'SCTP', number: IPPROTO_SCTP },
}
/** Any client port will do: no rule asks for it. */
const CLIENT_PORT = 40_000

const FLAGS: readonly FlagSpec[] = [
  {
    name: 'from',
    kind: 'text',
    placeholder: 'ADDRESS',
    default: '',
    help: 'who connects; an address of this Node means one of its processes, which comes from the service address itself where that is bound here (mode ipvs)',
  },
  { name: 'to', kind: 'text', placeholder: 'ADDRESS:PORT', default: '', help: 'what it connects to' },
  { name: 'proto', kind: 'text', placeholder: 'PROTOCOL', default: 'tcp', help: 'tcp, udp or sctp' },
  {
    name: 'interface',
    kind: 'text',
    placeholder: 'NAME',
    default: '',
    help: 'interface that the packet comes in by, when pods are recognised by interface',
  },
  outputFlag(OUTPUTS),
]

export const command: Command = {
  help: () =>
    helpText({
      usage: 'kprobe explain --from ADDRESS --to ADDRESS:PORT --source=file:PATH [flags]',
      description:
        'Walks what `kprobe run` with the same flags puts into the kernel for the first packet of one connection: which\n' +
        'rules decide, where it may go, why each endpoint was left out, and whether its source address is replaced.\n' +
        'The kernel itself is not asked.',
      details: [
        'Example:',
        '  kprobe explain --from 203.0.113.7 --to 192.0.2.10:30080 --source=file:deploy/examples',
        '',
        FROM_DAEMON,
        WITHOUT_EFFECT,
      ],
      flags: [...MODEL_FLAGS, MODEL_SOCKET_FLAG, ...FLAGS, HELP_FLAG],
    }),
  run,
}

async function run(argv: readonly string[], io: Io): Promise<number> {
  const request = await readModelRequest(argv, io, { command: 'explain', extra: FLAGS })
  if (typeof request === 'number') return request
  const { config, extra } = request
  const question = readQuestion(extra)
  const output = extra.oneOf('output', OUTPUTS, 'text')
  if (extra.errors.length > 0 || question === undefined) return usageErrors(io, 'explain', extra.errors)
  try {
    const explanation = await withLoaded(request, io, loaded => explain(question, config, loaded))
    if (output === 'text') io.out(explanationText(explanation))
    else await writeDocument(explanation, output, io)
    return EXIT_FINE
  } catch (error) {
    io.err(`kprobe explain: ${failureText(error)}\n`)
    return EXIT_FAILED
  }
}

interface Question {
  readonly from: Ip
  readonly to: Ip
  readonly port: number
  readonly protocol: { readonly name: Protocol; readonly number: number }
  readonly interfaceName: string | undefined
}

function readQuestion(reader: FlagReader): Question | undefined {
  const from = readIp(reader, 'from', reader.text('from') ?? '')
  const [, bracketed, plain, digits = ''] = /^(?:\[(.*)\]|([^:]*)):(\d+)$/.exec(reader.text('to') ?? '') ?? []
  const address = bracketed ?? plain
  if (address === undefined) reader.fail('--to', 'is written ADDRESS:PORT, and [ADDRESS]:PORT for IPv6')
  const to = address === undefined ? undefined : readIp(reader, 'to', address)
  const port = Number(digits)
  if (address !== undefined && (port < 1 || port > 65_535)) reader.fail('--to', 'a port goes from 1 to 65535')
  const word = (reader.text('proto') ?? 'tcp').toLowerCase()
  const protocol = Object.hasOwn(PROTOCOLS, word) ? PROTOCOLS[word] : undefined
  if (protocol === undefined) reader.fail('--proto', `${quote(word)} is not one of tcp, udp, sctp`)
  if (from === undefined || to === undefined || protocol === undefined) return undefined
  if (from.length !== to.length) reader.fail('--to', `is ${familyOf(to)} while --from is ${familyOf(from)}`)
  return { from, to, port, protocol, interfaceName: reader.text('interface') || undefined }
}

function readIp(reader: FlagReader, flag: string, text: string): Ip | undefined {
  const ip = parseIp(text)
  if (ip === undefined) reader.fail(`--${flag}`, `${quote(text)} is ${whyNotIp(text)}`)
  return ip
}

function explain(question: Question, config: Config, { table, snapshot }: Loaded): Explanation {
  const { from, to, port, protocol } = question
  const localIps = new Set([...table.node.ips, ...snapshot.localIps])
  const fromNode = isLoopback(from) || localIps.has(from)
  const tracer = tracerOf(config, table)
  const source = (fromNode ? tracer.ownSource(to) : undefined) ?? from
  const packet: TracePacket = {
    origin: fromNode ? 'process' : 'interface',
    protocol: protocol.number,
    source,
    sourcePort: CLIENT_PORT,
    destination: to,
    destinationPort: port,
    ...(question.interfaceName === undefined ? {} : { interfaceName: question.interfaceName }),
  }
  const ways = tracer.ways(packet, { localIps })
  const caught = findFrontend(table, question, localIps)
  return {
    connection: {
      protocol: protocol.name,
      from: formatIp(from),
      to: formatIpPort(to, port),
      origin: fromNode ? 'a process of this node' : 'outside of this node, or a pod',
      source: formatIp(source),
    },
    service: caught?.port.displayName,
    frontend: caught?.frontend.kind,
    outcomes: outcomesOf(ways),
    rules: (ways[0]?.trace.steps ?? []).map(({ chain, rule, text, elements }) => ({
      chain,
      rule,
      text,
      elements,
    })),
    endpoints: caught === undefined ? [] : endpointsOf(caught.port, { config, table, snapshot }),
  }
}

function outcomesOf(ways: readonly Way[]): Explanation['outcomes'] {
  return ways
    .map(({ trace, probability }) => ({
      verdict: trace.verdict,
      ...(trace.verdict === 'dnat'
        ? { destination: formatIpPort(trace.destination.ip, trace.destination.port) }
        : {}),
      sourceReplaced: trace.masquerade,
      percent: Math.round(probability * 10_000) / 100,
    }))
    .sort((a, b) => ((a.destination ?? '') < (b.destination ?? '') ? -1 : 1))
}

interface Caught {
  readonly port: PortFrontends
  readonly frontend: Frontend
}

/** The frontend that the packet meets: by address first, by NodePort then. */
function findFrontend(
  table: FrontendTable,
  question: Question,
  localIps: ReadonlySet<Ip>,
): Caught | undefined {
  const { to, port: number, protocol } = question
  const family = familyOf(to)
  const nodePorts = table.nodePorts[family]
  const isNodePortIp = nodePorts.kind === 'all' ? localIps.has(to) : nodePorts.ips.includes(to)
  let byNodePort: Caught | undefined
  for (const { ports } of table.services.values()) {
    for (const port of ports) {
      if (port.protocol !== protocol.name || port.family !== family) continue
      for (const frontend of port.frontends) {
        if (frontend.port !== number) continue
        if (frontend.ip === to) return { port, frontend }
        if (frontend.ip === undefined && isNodePortIp) byNodePort = { port, frontend }
      }
    }
  }
  return byNodePort
}

function endpointsOf(port: PortFrontends, loaded: Loaded & { readonly config: Config }): ExplainedEndpoint[] {
  const found = explainEndpoints({
    options: resolveOptions(loaded.config),
    snapshot: loaded.snapshot,
    service: port.service,
    portName: port.displayName.slice(port.service.length + 1),
    protocol: port.protocol,
    family: port.family,
  })
  return (found?.endpoints ?? []).map(endpoint => ({
    address: formatIpPort(endpoint.ip, endpoint.port),
    node: endpoint.nodeName,
    slice: endpoint.slice,
    cluster: endpoint.cluster,
    local: endpoint.localList,
  }))
}
