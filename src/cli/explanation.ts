import { systemClock } from '../base/clock.ts'
import { failureText } from '../base/errors.ts'
import { formatIpPort, type Ip } from '../base/ip.ts'
import { oneLine } from '../base/text.ts'
import type { Config } from '../config/config.ts'
import { KERNEL } from '../daemon/open.ts'
import type { Way } from '../kernel/nft/trace.ts'
import type { TracePacket } from '../kernel/nft/trace-packet.ts'
import { NFT_FAMILIES, PROTOCOL_NUMBERS } from '../modes/common/tables.ts'
import type { HeldMode } from '../modes/mode.ts'
import { readModes } from '../modes/read.ts'
import { findMode } from '../modes/registry.ts'
import { tableText } from './output.ts'
import { type IsListening, readListening, whyNotRelayed } from './programmed.ts'

/** The path of one connection, with the reasons. */
export interface Explanation {
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
  /** Reasons why the connection does not reach its destination. */
  readonly reasons: readonly string[]
  /** All endpoints and verdicts that the Services allow for the connection. */
  readonly outcomes: readonly Outcome[]
  readonly kernel: KernelOutcome
  /** The rules that take effect on the way to the first outcome, in order. */
  readonly rules: readonly {
    readonly chain: string
    readonly rule: number
    readonly text: string
    readonly elements: readonly string[]
  }[]
  readonly endpoints: readonly ExplainedEndpoint[]
}

export interface ExplainedEndpoint {
  readonly address: string
  readonly node: string
  readonly slice: string
  /** Whether the endpoint is listed for traffic policy Cluster, and for Local. */
  readonly cluster: { readonly isIn: boolean; readonly reason: string }
  readonly local: { readonly isIn: boolean; readonly reason: string }
}

const VERDICTS = {
  dnat: 'goes to',
  reject: 'is rejected (connection refused)',
  drop: 'is dropped without an answer',
  accept: 'no kprobe rule matches; the packet passes unchanged',
} as const

/** Words for verdicts that the kernel does not confirm. */
const WISHES: Readonly<Record<Outcome['verdict'], string>> = {
  dnat: 'would go to',
  reject: 'would be rejected (connection refused)',
  drop: 'would be dropped without an answer',
  accept: 'no kprobe rule would match; the packet would pass unchanged',
}

export function explanationText(explanation: Explanation): string {
  const { connection, service, frontend, kernel, rules, endpoints } = explanation
  const caught =
    service === undefined ? 'no Service has this address and port' : `${oneLine(service)} (${frontend})`
  return [
    `${connection.protocol} from ${connection.from} (${connection.origin}) to ${connection.to}\n`,
    connection.source === connection.from ? '' : sourceLine(connection.source),
    `Service: ${caught}\n`,
    ...explanation.reasons.map(reason => `${oneLine(reason)}\n`),
    '\n',
    ...outcomeLines(explanation),
    rules.length === 0 ? '' : `\nRules that ${kernel.kind === 'same' ? '' : 'would '}take effect:\n`,
    ...rules.map(ruleLines),
    endpoints.length === 0 ? '' : `\n${endpointTable(endpoints)}`,
  ].join('')
}

function sourceLine(source: string): string {
  return `Its packets come from ${source}, which is bound to this node, unless it chose their source itself.\n`
}

/** States an outcome as a fact only if the kernel confirms it; otherwise in the conditional. */
function outcomeLines({ outcomes, kernel }: Explanation): readonly string[] {
  if (kernel.kind === 'same')
    return [
      'Outcome:\n',
      ...outcomes.map(each => outcomeLine(each)),
      `Outcome, the kernel: ${sameText(kernel)}\n`,
    ]
  const wanted = [
    'Outcome, as the Services specify it:\n',
    ...outcomes.map(each => outcomeLine(each, WISHES)),
  ]
  if (kernel.kind === 'unknown') return [...wanted, `Outcome, the kernel: cannot be read: ${kernel.reason}\n`]
  if (kernel.kind === 'absent') return [...wanted, `Outcome, the kernel: ${kernel.reason}\n`]
  const reason = kernel.reason === undefined ? '' : ` ${kernel.reason}`
  return [
    ...wanted,
    `Outcome, the kernel: DIFFERENT:${reason}\n`,
    ...kernel.outcomes.map(each => outcomeLine(each)),
  ]
}

function sameText({ listener }: Extract<KernelOutcome, { kind: 'same' }>): string {
  return listener === undefined ? 'the same' : `leads to the daemon, which listens at ${listener}`
}

function outcomeLine(
  { verdict, destination, sourceReplaced, percent }: Outcome,
  words: typeof WISHES = VERDICTS,
): string {
  const where = destination === undefined ? '' : ` ${destination}`
  const source = sourceReplaced ? ', source address replaced by one of the node' : ', source address kept'
  return `  ${percent}%  ${words[verdict]}${where}${verdict === 'dnat' ? source : ''}\n`
}

function ruleLines({ chain, rule, text, elements }: Explanation['rules'][number]): string {
  const found = elements.map(element => `      ${oneLine(element)}\n`)
  return `  ${oneLine(`${chain}, rule ${rule}: ${text}`)}\n${found.join('')}`
}

function endpointTable(endpoints: readonly ExplainedEndpoint[]): string {
  const rows = endpoints.map(({ address, node, cluster, local }) => [
    address,
    node === '' ? '-' : node,
    verdict(cluster),
    verdict(local),
  ])
  return tableText(['ENDPOINT', 'NODE', 'POLICY CLUSTER', 'POLICY LOCAL'], rows, { color: false })
}

function verdict({ isIn, reason }: ExplainedEndpoint['cluster']): string {
  return `${isIn ? 'in' : 'out'}: ${reason}`
}

/** One endpoint or verdict that connections may end in. */
export interface Outcome {
  readonly verdict: 'dnat' | 'reject' | 'drop' | 'accept'
  readonly destination?: string
  /** The node masquerades: the endpoint sees an address of the node as the source. */
  readonly sourceReplaced: boolean
  /** The share of all such connections. */
  readonly percent: number
}

/** The verdict of the kernel on the packet, for comparison with the verdict of the Services. */
type KernelOutcome =
  /** The kernel agrees. `listener`: the address of the daemon, where it relays the connection. */
  | { readonly kind: 'same'; readonly listener?: string }
  | { readonly kind: 'different'; readonly outcomes: readonly Outcome[]; readonly reason?: string }
  /** The kernel does not hold the rules of this mode. */
  | { readonly kind: 'absent'; readonly reason: string }
  | { readonly kind: 'unknown'; readonly reason: string }

export interface KernelQuestion {
  readonly packet: TracePacket
  readonly localIps: ReadonlySet<Ip>
  readonly wanted: readonly Outcome[]
  /** The daemon listens at the destination itself, and relays connections that pass all rules unchanged. */
  readonly isRelayed?: boolean
}

/** Merges ways that end alike. Sorted by destination. */
export function outcomesOf(ways: readonly Way[]): readonly Outcome[] {
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

/** Reads the rules of the configuration's mode from the kernel, and traces the packet through them. */
export async function askKernel(config: Config, question: KernelQuestion): Promise<KernelOutcome> {
  try {
    const read = await readModes({
      sockets: KERNEL,
      clock: systemClock,
      families: NFT_FAMILIES,
      proxyName: config.serviceProxyName,
    })
    const found = kernelOutcome(read.held, config.proxyMode, question)
    return found.kind === 'same' && found.listener !== undefined
      ? relayedOutcome(found, question, readListening())
      : found
  } catch (error) {
    return { kind: 'unknown', reason: oneLine(failureText(error)) }
  }
}

export function kernelOutcome(
  held: readonly HeldMode[],
  mode: Config['proxyMode'],
  { packet, localIps, wanted, isRelayed = false }: KernelQuestion,
): KernelOutcome {
  const found = held.find(its => its.mode === mode)
  if (found === undefined) {
    const others = held.map(its => its.mode).join(' and ')
    const instead = others === '' ? '' : `; those of ${others} mode are`
    return { kind: 'absent', reason: `rules of ${mode} mode are not in the kernel${instead}` }
  }
  // The question is about a new client, so that session affinity has no entry for it.
  const { tracer, obstacle, localIps: own } = found.rulesForNewClients?.() ?? found.rules
  const ways = tracer.ways(packet, { localIps: new Set([...localIps, ...own]) })
  const outcomes = outcomesOf(ways)
  if (isRelayed && outcomes.every(({ verdict }) => verdict === 'accept'))
    return { kind: 'same', listener: formatIpPort(packet.destination, packet.destinationPort) }
  if (keyOf(outcomes, mode) === keyOf(wanted, mode)) {
    const listener = findMode(mode).relays ? outcomes[0]?.destination : undefined
    return { kind: 'same', ...(listener === undefined ? {} : { listener }) }
  }
  const family = packet.source.length === 4 ? 'IPv4' : 'IPv6'
  const reason = obstacle(family, packet.origin === 'process' ? 'output' : 'prerouting')
  return { kind: 'different', outcomes, ...(reason === undefined ? {} : { reason }) }
}

/** The rules of a mode that relays stay when its daemon ends: connections are then refused. */
function relayedOutcome(
  found: Extract<KernelOutcome, { kind: 'same' }>,
  { packet: { protocol } }: KernelQuestion,
  isListening: IsListening,
): KernelOutcome {
  const name = protocol === PROTOCOL_NUMBERS.UDP ? 'UDP' : 'TCP'
  const reason = whyNotRelayed(name, [found.listener], isListening)
  if (reason === undefined) return found
  return { kind: 'different', reason, outcomes: [{ verdict: 'reject', sourceReplaced: false, percent: 100 }] }
}

/**
 * Tests whether the kernel does something else. Missing rules count only if a running daemon should have written them.
 */
export function isElsewhere(kernel: KernelOutcome, wanted: readonly Outcome[], hasDaemon: boolean): boolean {
  if (kernel.kind === 'different') return true
  return kernel.kind === 'absent' && hasDaemon && wanted.some(({ verdict }) => verdict !== 'accept')
}

/** In a mode that relays, the kernel knows only the listener, and the daemon knows the endpoints. */
function keyOf(outcomes: readonly Outcome[], mode: Config['proxyMode']): string {
  if (findMode(mode).relays !== true) return JSON.stringify(outcomes)
  return JSON.stringify([...new Set(outcomes.map(({ verdict }) => verdict))].sort())
}
