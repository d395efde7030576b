import { failureText } from '../base/errors.ts'
import {
  anyContains,
  familyOf,
  formatCidr,
  formatIp,
  formatIpPort,
  type Ip,
  isLoopback,
  parseIp,
} from '../base/ip.ts'
import { count } from '../base/text.ts'
import type { Config } from '../config/config.ts'
import { resolveOptions } from '../config/daemon-config.ts'
import type { FlagSpec } from '../config/flag.ts'
import { MODEL_SOCKET_FLAG } from '../config/flag-tables.ts'
import { HELP_FLAG, MODEL_FLAGS, outputFlag, WITHOUT_EFFECT } from '../config/flags.ts'
import { helpText } from '../config/help.ts'
import type { TracePacket } from '../kernel/nft/trace-packet.ts'
import type { Oversized } from '../model/admission.ts'
import { explainEndpoints } from '../model/explain.ts'
import type { Refusal } from '../model/fields.ts'
import type { Frontend, FrontendTable, PortFrontends } from '../model/frontend.ts'
import { backendsAtLocalhost, LOCALHOST } from '../model/node-context.ts'
import type { Resolved } from '../model/resolve.ts'
import type { Service } from '../model/service.ts'
import type { Snapshot } from '../model/snapshot.ts'
import { endpointTexts } from '../modes/common/show.ts'
import { findMode } from '../modes/registry.ts'
import { portsText, type Question, readQuestion, resolveQuestion } from './explain-question.ts'
import {
  askKernel,
  type ExplainedEndpoint,
  type Explanation,
  explanationText,
  isElsewhere,
  type Outcome,
  outcomesOf,
} from './explanation.ts'
import { type Command, EXIT_DIFFERENT, EXIT_FAILED, EXIT_FINE, type Io } from './io.ts'
import { type Loaded, withLoaded } from './load.ts'
import { OUTPUTS, writeDocument } from './output.ts'
import { CLIENT_PORT } from './programmed.ts'
import { FROM_DAEMON, readModelRequest, usageErrors } from './request.ts'

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
    help: 'destination: ADDRESS:PORT, [svc/]NAMESPACE/SERVICE[:PORT], SERVICE.NAMESPACE[.svc][:PORT] or pod/NAMESPACE/NAME:PORT; a port of a Service is a number or a name, and PORT/PROTOCOL, as `kprobe dump` prints it, is short for --proto',
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
  const caught = findFrontend(table, question, localIps)
  const relayed =
    caught === undefined || !fromNode ? undefined : relayedOutcomes(caught.port, question, table)
  const outcomes = relayed ?? outcomesOf(ways)
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
    kernel: await askKernel(config, { packet, localIps, wanted: outcomes, isRelayed: relayed !== undefined }),
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
  const isNodePortIp =
    isRelayed(table, to) || (nodePorts.kind === 'all' ? localIps.has(to) : nodePorts.ips.includes(to))
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

/** Tests whether a relay of the daemon serves node ports at an address. */
function isRelayed({ relayedAtLocalhost = [] }: FrontendTable, to: Ip): boolean {
  return relayedAtLocalhost.some(family => LOCALHOST[family] === to)
}

/** Gives what the relay does with a connection of this node; undefined if it does not get it. */
function relayedOutcomes(
  port: PortFrontends,
  { to, protocol }: Question,
  table: FrontendTable,
): readonly Outcome[] | undefined {
  const backends = protocol.name === 'SCTP' ? [] : backendsAtLocalhost(port)
  if (!isRelayed(table, to) || backends.length === 0) return undefined
  const percent = Math.round(10_000 / backends.length) / 100
  return endpointTexts(backends).map(destination => ({
    verdict: 'dnat',
    destination,
    sourceReplaced: true,
    percent,
  }))
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

/** A frontend that the packet matches, with its service port. */
interface Caught {
  readonly port: PortFrontends
  readonly frontend: Frontend
}

interface ReasonsInput {
  readonly question: Question
  readonly table: FrontendTable
  readonly snapshot: Snapshot
  /** Services that are not served for want of memory. */
  readonly oversized: Iterable<Oversized>
  /** EndpointSlices that are refused as a whole, with their Services. */
  readonly refusedSlices: readonly Refusal[]
  readonly caught: Caught | undefined
  readonly endpoints: readonly ExplainedEndpoint[]
  readonly isLocal: boolean
}

/** Lists the reasons why a connection does not reach its destination, as sentences that name the Services. */
export function reasonsOf(input: ReasonsInput): readonly string[] {
  const { caught } = input
  const own =
    caught === undefined ? otherPorts(input) : [...deadEnds(input, caught), ...ignoredParts(input, caught)]
  return [...own, ...refusals(input)]
}

/** Finds frontends without an endpoint for this client, and those that do not admit it. */
function deadEnds({ question, endpoints }: ReasonsInput, { port, frontend }: Caught): readonly string[] {
  const { route, sourceRanges } = frontend
  const reasons: string[] = []
  if (sourceRanges !== undefined && !anyContains(sourceRanges, question.from))
    reasons.push(
      `${formatIp(question.from)} is outside the source ranges of Service ${port.service}: ${sourceRanges.map(formatCidr).join(', ')}`,
    )
  const all = endpoints.length
  const others = all === 0 ? '' : ` (${count(all, 'endpoint')}, listed below)`
  const local = `Service ${port.displayName} has no usable endpoint on this node, and its traffic policy is Local${others}`
  if (all === 0) reasons.push(`Service ${port.displayName} has no endpoints`)
  else if (route.kind === 'reject')
    reasons.push(`Service ${port.displayName} has no usable endpoint${others}`)
  else if (route.kind === 'drop') reasons.push(local)
  else if (route.kind === 'external-local' && port.local.length === 0)
    reasons.push(`${local}; pods and processes of this node reach endpoints on other nodes`)
  return reasons
}

/** Parts of EndpointSlices that the text names at most. */
const PARTS_MAX = 5

/** Lists what is ignored of the Service's EndpointSlices. */
function ignoredParts({ snapshot, refusedSlices }: ReasonsInput, { port }: Caught): readonly string[] {
  const { service } = port
  const slices = (snapshot.slices.get(service) ?? []).filter(slice => slice.leftOut === undefined)
  const whole = refusedSlices.filter(refusal => refusal.service === service)
  const texts = [
    ...whole.map(({ object, field, value, reason }) => `${object} is ignored: ${field} ${value}: ${reason}`),
    ...slices.flatMap(({ refusals }) =>
      refusals.map(({ object, field, value, reason }) => `${object}: ignored ${field} ${value}: ${reason}`),
    ),
  ]
  const more = texts.length - PARTS_MAX
  if (more <= 0) return texts
  const rest = `${count(more, 'more part')} of EndpointSlices of Service ${service} ${more === 1 ? 'is' : 'are'} ignored`
  return [...texts.slice(0, PARTS_MAX), rest]
}

/** Finds Services that have the address, and serve other ports there. */
function otherPorts({ question, table, snapshot }: ReasonsInput): readonly string[] {
  const { to } = question
  const reasons: string[] = []
  for (const { service, ports } of table.services.values()) {
    const here = ports.filter(({ frontends }) => frontends.some(({ ip }) => ip === to))
    if (here.length === 0) continue
    const listed = here.flatMap(({ displayName, protocol, frontends }) =>
      frontends
        .filter(({ ip }) => ip === to)
        .map(({ port }) => ({ name: displayName.slice(service.length + 1), port, protocol })),
    )
    reasons.push(
      `${formatIp(to)} is an address of Service ${service}, whose ports there are ${portsText(listed)}`,
    )
  }
  for (const service of snapshot.services.values()) {
    const isForeign = !table.services.has(service.key) && service.clusterIps.includes(to)
    if (isForeign)
      reasons.push(`${formatIp(to)} is an address of Service ${service.key}, which ${served(service)}`)
  }
  return reasons
}

function served({ proxyName }: { readonly proxyName: string | undefined }): string {
  return proxyName === undefined
    ? 'the unnamed proxy serves'
    : `the proxy ${proxyName} serves (label service.kubernetes.io/service-proxy-name)`
}

/** Finds Services whose request for the address or the node port was refused. */
function refusals(input: ReasonsInput): readonly string[] {
  const reasons = new Set<string>()
  for (const { service, refusal } of input.oversized)
    if (wants(service, input)) reasons.add(`${refusal.object} is not served: it ${refusal.reason}`)
  for (const service of input.snapshot.services.values())
    if (wants(service, input)) for (const reason of leftOut(service, input)) reasons.add(reason)
  for (const { refusals } of input.table.services.values())
    for (const refusal of refusals)
      if (isAbout(refusal, input))
        reasons.add(
          `${refusal.object} requests ${refusal.value} (${refusal.field}), which kprobe refuses: ${refusal.reason}`,
        )
  return [...reasons]
}

/** Lists objects of the Service that are left out for want of memory. */
function leftOut(service: Service, { snapshot }: ReasonsInput): readonly string[] {
  const slices = (snapshot.slices.get(service.key) ?? []).filter(slice => slice.leftOut !== undefined)
  return [
    ...(service.leftOut === undefined ? [] : service.refusals).map(
      ({ object, reason }) => `${object} is not served: it ${reason}`,
    ),
    ...slices.flatMap(({ refusals }) =>
      refusals.map(({ object, reason }) => `${object} is not used: it ${reason}`),
    ),
  ]
}

/** Tests whether the packet is for an address or a node port of the Service. */
function wants(
  { clusterIps, externalIps, loadBalancerIps, ports }: Service,
  { question, isLocal }: ReasonsInput,
): boolean {
  const { to, port, protocol } = question
  if ([clusterIps, externalIps, loadBalancerIps].some(ips => ips.includes(to))) return true
  return isLocal && ports.some(its => its.nodePort === port && its.protocol === protocol.name)
}

/**
 * Tests whether a refusal is about this packet. A refusal names an address, an address with its port, or a node port;
 * the latter two carry their protocol.
 */
function isAbout({ value }: Refusal, { question, isLocal }: ReasonsInput): boolean {
  const { to, port, protocol } = question
  const [place = '', its = protocol.name] = value.split('/')
  if (its !== protocol.name) return false
  return sameIp(place, to) || place === formatIpPort(to, port) || (isLocal && place === `${port}`)
}

function sameIp(text: string, ip: Ip): boolean {
  const its = parseIp(text)
  return its !== undefined && familyOf(its) === familyOf(ip) && its === ip
}
