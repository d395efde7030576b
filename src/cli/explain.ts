import { failureText } from '../base/failure-text.ts'
import { familyOf, formatIp, formatIpPort, type Ip, isLoopback } from '../base/ip.ts'
import type { Config } from '../config/config.ts'
import { MODEL_SOCKET_FLAG } from '../config/daemon-flags.ts'
import type { FlagSpec } from '../config/flag.ts'
import { HELP_FLAG, MODEL_FLAGS, outputFlag, WITHOUT_EFFECT } from '../config/flags.ts'
import { helpText } from '../config/help.ts'
import { resolveOptions } from '../config/resolve-options.ts'
import type { TracePacket } from '../kernel/nft/trace-packet.ts'
import { explainEndpoints } from '../model/explain.ts'
import type { FrontendTable, PortFrontends } from '../model/frontend.ts'
import type { Resolved } from '../model/resolve.ts'
import { findMode } from '../modes/registry.ts'
import { askKernel, isElsewhere, outcomesOf } from './explain-kernel.ts'
import { type Question, readQuestion, resolveQuestion } from './explain-question.ts'
import { type Caught, reasonsOf } from './explain-reasons.ts'
import { type ExplainedEndpoint, type Explanation, explanationText } from './explanation-text.ts'
import { type Command, EXIT_DIFFERENT, EXIT_FAILED, EXIT_FINE, type Io } from './io.ts'
import { type Loaded, withLoaded } from './load.ts'
import { FROM_DAEMON, readModelRequest } from './model-request.ts'
import { writeDocument } from './output.ts'
import { usageErrors } from './usage-errors.ts'

const OUTPUTS = ['text', 'json', 'yaml'] as const
/** No rule matches the client's port, so that any port will do. */
const CLIENT_PORT = 40_000

const FLAGS: readonly FlagSpec[] = [
  {
    name: 'from',
    kind: 'text',
    placeholder: 'CLIENT',
    help: 'client: an address or pod/NAMESPACE/NAME; an address of this Node stands for one of its processes (in IPVS mode its source is the Service address, which is bound here)',
  },
  {
    name: 'to',
    kind: 'text',
    placeholder: 'TARGET',
    help: 'destination: ADDRESS:PORT, [svc/]NAMESPACE/SERVICE[:PORT], SERVICE.NAMESPACE.svc[:PORT] or pod/NAMESPACE/NAME:PORT; a port of a Service is a number or a name',
  },
  {
    name: 'proto',
    kind: 'text',
    placeholder: 'PROTOCOL',
    help: 'tcp, udp or sctp; unset: the protocol of the Service port, or tcp',
  },
  {
    name: 'interface',
    kind: 'text',
    placeholder: 'NAME',
    help: 'interface that the packet arrives at, when pods are recognized by interface',
  },
  outputFlag(OUTPUTS),
]

export const command: Command = {
  help: () =>
    helpText({
      usage: 'kprobe explain --from CLIENT --to TARGET [flags]',
      description:
        'Traces the first packet of one connection through the rules that `kprobe run` with the same flags would write:\n' +
        'which rules decide, where the packet may go, why each endpoint is in or out, and whether its source address is\n' +
        'replaced. Also traces it through the rules in the kernel, if it may read them. Exits 3 when these lead elsewhere,\n' +
        'or when a daemon runs and its rules are missing.',
      details: [
        'Example:',
        '  kprobe explain --from 203.0.113.7 --to 192.0.2.10:30080 --source=file:deploy/examples',
        '  kprobe explain --from pod/shop/cart-1 --to web.shop.svc:http',
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
    const { kernel, outcomes } = await withLoaded(request, io, async loaded => {
      const explanation = await explain(resolveQuestion(question, loaded.snapshot), config, loaded)
      if (output === 'text') io.out(explanationText(explanation))
      else await writeDocument(explanation, output, io)
      return explanation
    })
    return isElsewhere(kernel, outcomes, request.daemon !== undefined) ? EXIT_DIFFERENT : EXIT_FINE
  } catch (error) {
    io.err(`kprobe explain: ${failureText(error)}\n`)
    return EXIT_FAILED
  }
}

async function explain(
  question: Question,
  config: Config,
  { table, snapshot, memo, refusedSlices }: Loaded,
): Promise<Explanation> {
  const { from, to, port, protocol } = question
  const localIps = new Set([...table.node.ips, ...snapshot.localIps])
  const fromNode = isLoopback(from) || localIps.has(from)
  const tracer = findMode(config.proxyMode).trace(config, table)
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
  const outcomes = outcomesOf(ways)
  const caught = findFrontend(table, question, localIps)
  const endpoints = caught === undefined ? [] : endpointsOf(caught.port, { config, table, snapshot })
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
    reasons: reasonsOf({
      question,
      table,
      snapshot,
      oversized: memo.admission?.oversized.values() ?? [],
      refusedSlices,
      caught,
      endpoints,
      isLocal: localIps.has(to),
    }),
    outcomes,
    kernel: await askKernel(config, { packet, localIps, wanted: outcomes }),
    rules: (ways[0]?.trace.steps ?? []).map(({ chain, rule, text, elements }) => ({
      chain,
      rule,
      text,
      elements,
    })),
    endpoints,
  }
}

/** Finds the frontend that the packet matches: first by address, then by node port. */
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

function endpointsOf(
  port: PortFrontends,
  loaded: Pick<Resolved, 'table' | 'snapshot'> & { readonly config: Config },
): ExplainedEndpoint[] {
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
