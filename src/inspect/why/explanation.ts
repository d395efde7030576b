import { familyOf, formatIp, formatIpPort, type Ip, isLoopback } from '../../base/ip.ts'
import { outputFlag } from '../../cli/document.ts'
import { type Command, EXIT_DIFFERENT, EXIT_FINE, type Io } from '../../cli/io.ts'
import type { RunCommand } from '../../cli/request.ts'
import type { Config } from '../../config/config.ts'
import { whyNotProvable } from '../../config/modes.ts'
import { objectText } from '../../model/fields.ts'
import type { FrontendTable, PortFrontends } from '../../model/frontend.ts'
import { backendsAtLocalhost, LOCALHOST } from '../../model/node-context.ts'
import { podNames, podPlaces } from '../../model/pod-names.ts'
import type { Resolved } from '../../model/resolve.ts'
import type { BalancePolicy } from '../../model/service.ts'
import { namesOfPorts, serviceOfFlow } from '../../modes/common/service-names.ts'
import { endpointTexts } from '../../modes/common/show.ts'
import { findMode } from '../../modes/registry.ts'
import { resolveOptions } from '../../modes/resolve-options.ts'
import type { TracePacket, TraceStep, Way } from '../../proof/evaluate/trace.ts'
import { readUnanswered, type UnansweredNames } from '../live/unanswered.ts'
import type { Unanswered, UnansweredRow } from '../live/unanswered-rows.ts'
import { type Loaded, withLoaded } from '../load.ts'
import { modelCommand } from '../model-request.ts'
import { portsText } from '../peers.ts'
import { CLIENT_PORT } from '../programmed.ts'
import { tracerOf } from '../tracer.ts'
import { type Answer, answerOf, silentOf } from './answer.ts'
import { explainEndpoints } from './endpoint-verdicts.ts'
import {
  type NamedQuestion,
  QUESTION_FLAGS,
  type Question,
  readQuestion,
  resolveQuestion,
} from './explain-question.ts'
import { type Caught, type ExplainedEndpoint, listOf, reasonsOf } from './explain-reasons.ts'
import {
  askKernel,
  isElsewhere,
  type KernelOutcome,
  type KernelQuestion,
  type Outcome,
  outcomesOf,
  shownOf,
  stepsTo,
} from './outcome.ts'

export const OF_NODE = 'a process of this node'

export interface Explanation extends Answer {
  readonly connection: {
    readonly protocol: string
    readonly from: string
    readonly to: string
    readonly origin: string
    /** The source of the first packet. It differs from `from` if the kernel selects another address for a process. */
    readonly source: string
  }
  /** `namespace/name:port`; undefined when no Service has the address. */
  readonly service: string | undefined
  readonly frontend: string | undefined
  /** Seconds that a client stays with its endpoint; 0 without session affinity. */
  readonly affinitySeconds: number
  /** The traffic policy whose list of endpoints applies to this client; undefined when no Service has the address. */
  readonly list: 'cluster' | 'local' | undefined
  readonly reasons: readonly string[]
  readonly notKnown: readonly string[]
  /** All endpoints and verdicts that the Services allow for the connection. */
  readonly outcomes: readonly Outcome[]
  readonly kernel: KernelOutcome
  /**
   * The rules that take effect, in order, on the way to the first outcome; to the first that is missing in the kernel,
   * where that differs.
   */
  readonly rules: readonly TraceStep[]
  readonly endpoints: readonly ExplainedEndpoint[]
}

interface QuestionCommand<Output extends string> extends Pick<RunCommand<object>, 'name' | 'description'> {
  readonly examples: readonly string[]
  /** The formats of --output; the first is the default. */
  readonly outputs: readonly [Output, ...Output[]]
  readonly write: (
    explanation: Explanation,
    output: Output,
    to: { readonly asked: Asked; readonly io: Io },
  ) => void | Promise<void>
}

export interface Asked {
  readonly from: string
  readonly to: string
}

export function questionCommand<Output extends string>(own: QuestionCommand<Output>): Command {
  const { examples, outputs, write, ...help } = own
  const asked = modelCommand({
    ...help,
    usage: 'TARGET [--from CLIENT] [flags]',
    details: ['TARGET is short for --to TARGET.', '', 'Example:', ...examples, ''],
    flags: [...QUESTION_FLAGS, outputFlag(outputs)],
    read(reader) {
      const question = readQuestion(reader)
      const output = reader.oneOf('output', outputs, outputs[0])
      const asked = { from: reader.text('from') || 'this node', to: reader.text('to') ?? '' }
      return question && { question, output, asked }
    },
    async run({ question, output, asked }, request, io) {
      const hasDaemon = request.daemon !== undefined
      const { kernel, outcomes, endpoints } = await withLoaded(request, io, async loaded => {
        requireHeld(question, loaded)
        const path = followed(resolveQuestion(question, loaded.snapshot), request.config, loaded)
        const kernel = await askKernel(request.config, path.asked)
        const unanswered = path.caught && (await readUnanswered(namesOfPath(path.caught, path.endpoints)))
        const explanation = explained(path, kernel, { hasDaemon, wallMs: Date.now(), unanswered })
        await write(explanation, output, { asked, io })
        return explanation
      })
      const isAnswered = silentOf(endpoints, outcomes).length === 0
      return isElsewhere(kernel, outcomes, hasDaemon) || !isAnswered ? EXIT_DIFFERENT : EXIT_FINE
    },
  })
  return {
    help: asked.help,
    run([target, ...flags], io) {
      const isTarget = target !== undefined && !target.startsWith('-')
      const argv = target === undefined ? [] : [isTarget ? `--to=${target}` : target, ...flags]
      return asked.run(argv, io)
    },
  }
}

/** Names the connections to one service port, and the Pods of its endpoints. */
function namesOfPath({ port }: Caught, endpoints: readonly ExplainedEndpoint[]): UnansweredNames {
  const pods = new Map(endpoints.map(({ address, pod }) => [address, pod]))
  const names = namesOfPorts([port])
  return {
    serviceOf: (...destination) => serviceOfFlow(names, ...destination),
    podAt: endpoint => pods.get(endpoint),
  }
}

/** Throws for a Service that the daemon refuses as a whole: it holds nothing of it but the refusal. */
export function requireHeld(
  { to }: NamedQuestion,
  { snapshot, refusedObjects }: Pick<Loaded, 'snapshot' | 'refusedObjects'>,
): void {
  if (to.kind !== 'service' || snapshot.services.has(to.key)) return
  const object = objectText('Service', to.key)
  const refusal = refusedObjects.find(each => each.object === object)
  if (refusal !== undefined) throw new Error(`${object} is not served: ${refusal.reason}`)
}

/** The model's answer about one connection, and the question to the kernel about it. */
interface Followed {
  readonly question: Question
  readonly loaded: Loaded
  readonly asked: KernelQuestion
  readonly caught: Caught | undefined
  readonly endpoints: readonly ExplainedEndpoint[]
  readonly ways: readonly Way[]
  /** `kprobe verify --prove` follows packets through the chains of all programs. */
  readonly isProvable: boolean
}

/** Follows the first packet of one connection through the computed rules. Pure. */
export function followed(question: Question, config: Config, loaded: Loaded): Followed {
  const { table, snapshot } = loaded
  const { from, to, port, protocol } = question
  const localIps = new Set([...table.node.ips, ...snapshot.localIps])
  const fromNode = isLoopback(from) || localIps.has(from)
  const traced = findMode(config.proxyMode).traced(config, table)
  const packet: TracePacket = {
    origin: fromNode ? 'process' : 'interface',
    protocol: protocol.number,
    // For a destination that the mode binds to a device of this node, the kernel uses the destination itself as the source.
    source: fromNode && traced.ipvs?.addresses.includes(to) ? to : from,
    sourcePort: CLIENT_PORT,
    destination: to,
    destinationPort: port,
    ...(question.interfaceName === undefined ? {} : { interfaceName: question.interfaceName }),
  }
  const ways = tracerOf(traced).ways(packet, { localIps })
  const caught = findFrontend(table, question, localIps)
  const relayed =
    caught === undefined || !fromNode ? undefined : relayedOutcomes(caught.port, question, table)
  const wanted = relayed ?? outcomesOf(ways)
  return {
    question,
    loaded,
    asked: { packet, localIps, wanted, ways, isRelayed: relayed !== undefined },
    caught,
    endpoints: caught === undefined ? [] : endpointsOf(caught.port, { config, table, snapshot }),
    ways,
    isProvable: whyNotProvable(config) === undefined,
  }
}

interface Circumstances {
  /** A daemon should have written the rules. */
  readonly hasDaemon: boolean
  readonly wallMs: number
  /** What conntrack holds of the service port; undefined where it was not read. */
  readonly unanswered?: Unanswered | undefined
}

/** Explains what was followed, with the outcome in the kernel. Pure. */
export function explained(
  { question, loaded, asked, caught, ways, isProvable, ...path }: Followed,
  kernel: KernelOutcome,
  { hasDaemon, wallMs, unanswered }: Circumstances,
): Explanation {
  const { to, port, protocol } = question
  const { packet, localIps, wanted: outcomes } = asked
  const { table, snapshot, memo, refusedObjects, refusedSince } = loaded
  // Another Service may have the same endpoints.
  const isIts = ({ service }: UnansweredRow) => service === caught?.port.displayName
  const endpoints = withUnanswered(path.endpoints, unanswered?.rows.filter(isIts) ?? [])
  const reasons = reasonsOf({
    question,
    table,
    snapshot,
    overCap: memo.caps.refused.values(),
    refusedObjects,
    refusedSince,
    caught,
    endpoints,
    isLocal: localIps.has(to),
    wallMs,
  })
  const list = caught === undefined ? undefined : listOf(caught, endpoints, outcomes)
  const place = `${formatIpPort(to, port)}/${protocol.name}`
  const rejected = loaded.quarantined
  return {
    ...answerOf({
      question,
      place,
      caught,
      list,
      reasons,
      outcomes,
      kernel,
      endpoints,
      hasDaemon,
      rejection: caught && (rejected?.get(caught.port.service) ?? rejected?.get(caught.port.family)),
    }),
    connection: connectionOf(question, packet),
    service: caught?.port.displayName,
    frontend: caught?.frontend.kind,
    affinitySeconds: caught?.port.affinityTimeoutS ?? 0,
    list,
    reasons: [...reasons.map(({ text }) => text), ...balanceText(caught?.port)],
    notKnown: [
      ...notKnownOf(question, caught, { kernel, isProvable }),
      ...(unanswered?.limits === undefined ? [] : [`whether all endpoints answer: ${unanswered.limits}`]),
      ...loaded.notKnown,
    ],
    outcomes,
    kernel,
    rules: stepsTo(ways, shownOf(outcomes, kernel.kind === 'different' ? kernel.outcomes : outcomes)),
    endpoints,
  }
}

function withUnanswered(
  endpoints: readonly ExplainedEndpoint[],
  rows: readonly UnansweredRow[],
): readonly ExplainedEndpoint[] {
  return endpoints.map(each => {
    const unanswered = rows.find(({ endpoint }) => endpoint === each.address)
    return unanswered === undefined ? each : { ...each, unanswered }
  })
}

const BALANCE: Readonly<Record<BalancePolicy, string>> = {
  random: 'Endpoints are chosen at random, by kprobe.io/weights.',
  maglev: "The client's address chooses the endpoint, the same on every node (maglev).",
  'maglev/5-tuple':
    'Addresses and ports choose the endpoint, the same on every node (maglev/5-tuple): another source port may reach another one.',
  'local-first': 'Endpoints of this node come first; others get what is beyond their share (local-first).',
}

function balanceText(port: PortFrontends | undefined): readonly string[] {
  return port?.balance === undefined ? [] : [BALANCE[port.balance.policy]]
}

function connectionOf(
  { from, to, port, protocol }: Question,
  { origin, source }: TracePacket,
): Explanation['connection'] {
  return {
    protocol: protocol.name,
    from: formatIp(from),
    to: formatIpPort(to, port),
    origin: origin === 'process' ? OF_NODE : 'outside of this node, or a pod',
    source: formatIp(source),
  }
}

function notKnownOf(
  { from, port, protocol, fromOtherNode, isFromOutside, alike = [] }: Question,
  caught: Caught | undefined,
  { kernel, isProvable }: { readonly kernel: KernelOutcome; readonly isProvable: boolean },
): readonly string[] {
  const hasRanges = caught?.frontend.sourceRanges !== undefined
  return [
    ...(alike.length === 0
      ? []
      : [
          `what happens to ${portsText(alike)}: this is about ${port}/${protocol.name}; --proto selects another`,
        ]),
    ...(isFromOutside === true && hasRanges
      ? [
          `whether the source ranges admit the client: outside stands for ${formatIp(from)}; give the client's address`,
        ]
      : []),
    ...(kernel.kind === 'unknown' ? [`what the kernel does: ${kernel.reason}`] : []),
    ...othersText(kernel.others ?? [], isProvable),
    ...(fromOtherNode === undefined
      ? []
      : [
          `what node ${fromOtherNode} does: the client runs there, and its packets meet that node's rules first`,
        ]),
  ]
}

/** Chains of other programs that the text names at most. */
const OTHERS_MAX = 5

function othersText(others: readonly string[], isProvable: boolean): readonly string[] {
  const [only, second] = others
  if (only === undefined) return []
  const more = others.length - OTHERS_MAX
  const names = [...others.slice(0, OTHERS_MAX), ...(more > 0 ? [`${more} more`] : [])]
  const does = second === undefined ? `chain ${only} does` : `chains ${names.join(', ')} do`
  const how = isProvable ? '; `kprobe verify --prove` follows it' : ''
  return [`what ${does} with the packet${how}`]
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
function isRelayed({ forwardedAtLocalhost = [] }: FrontendTable, to: Ip): boolean {
  return forwardedAtLocalhost.some(family => LOCALHOST[family] === to)
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
  const pods = podNames(podPlaces(loaded.snapshot.slices.get(port.service) ?? []))
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
    pod: pods(formatIpPort(endpoint.ip, endpoint.port)),
    node: endpoint.nodeName,
    zone: endpoint.zone,
    slice: endpoint.slice,
    cluster: endpoint.cluster,
    local: endpoint.localList,
  }))
}
