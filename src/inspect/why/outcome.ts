import { failureText } from '../../base/errors.ts'
import { familyOf, formatIpPort, type Ip } from '../../base/ip.ts'
import { PROTOCOL_NUMBERS } from '../../base/ip-packet.ts'
import { oneLine } from '../../base/text.ts'
import type { Config } from '../../config/config.ts'
import { HERE, withNetfilter } from '../../daemon/open.ts'
import {
  NF_INET_FORWARD,
  NF_INET_LOCAL_IN,
  NF_INET_LOCAL_OUT,
  NF_INET_POST_ROUTING,
  NF_INET_PRE_ROUTING,
} from '../../kernel/nft/constants.ts'
import { type HookFamily, isHookFamily } from '../../kernel/nft/state.ts'
import {
  type ForeignRule,
  type ForeignTable,
  type SurveyedChain,
  surveyChains,
  surveyTable,
} from '../../kernel/nft/survey.ts'
import { whyUnforwarded } from '../../kernel/sysctl/sysctls.ts'
import { NOT_REACHED, type ServiceRow } from '../../modes/common/show.ts'
import { NFT_FAMILIES } from '../../modes/common/tables.ts'
import { isTraceTable } from '../../modes/common/trace-table.ts'
import type { HeldMode } from '../../modes/mode.ts'
import { findMode, MODES, readModes } from '../../modes/registry.ts'
import { chainNames, isIpvsChain, isOurChain } from '../../modes/xt-common/layout.ts'
import { XT_TABLES } from '../../modes/xt-common/read-chains.ts'
import type { Connection } from '../../netlink/connection.ts'
import type { TracePacket, TraceStep, Way } from '../../proof/evaluate/trace.ts'
import { type IsListening, readListening, whyNotRelayed } from '../programmed.ts'
import { tracerOf } from '../tracer.ts'

/** One endpoint or verdict that connections may end in. */
export interface Outcome {
  readonly verdict: 'dnat' | 'reject' | 'drop' | 'accept'
  readonly destination?: string
  /** The node masquerades: the endpoint sees an address of the node as the source. */
  readonly sourceReplaced: boolean
  readonly percent: number
}

/**
 * The verdict of the kernel on the packet, for comparison with the verdict of the Services. `others`: base chains of
 * other programs on its way, whose verdict is not known.
 */
export type KernelOutcome = Verdict & { readonly others?: readonly string[] }

type Verdict =
  /**
   * The kernel agrees. `listener`: the address of the daemon, where it relays the connection. `rules`: those that take
   * effect in the kernel, where they are others.
   */
  | { readonly kind: 'same'; readonly listener?: string; readonly rules?: readonly TraceStep[] }
  | {
      readonly kind: 'different'
      /** The part that differs; `relay`: the rules lead to a process that is gone; `forwarding`: it is off. */
      readonly part: 'rules' | 'relay' | 'forwarding'
      readonly outcomes: readonly Outcome[]
      readonly reason?: string
      /** The rules of the kernel that take effect on the way to the outcome that `shownOf` selects, in order. */
      readonly rules: readonly TraceStep[]
    }
  /** The kernel does not hold the rules of this mode. */
  | { readonly kind: 'absent'; readonly reason: string }
  | { readonly kind: 'unknown'; readonly reason: string }

export interface KernelQuestion {
  readonly packet: TracePacket
  readonly localIps: ReadonlySet<Ip>
  readonly wanted: readonly Outcome[]
  /** The computed ways, for comparison with those in the kernel. */
  readonly ways?: readonly Way[]
  /** The daemon listens at the destination itself, and relays connections that pass all rules unchanged. */
  readonly isRelayed?: boolean
}

/** Gives the outcome of each way. Sorted by destination. */
export function outcomesOf(ways: readonly Way[]): readonly Outcome[] {
  return ways.map(outcomeOf).sort((a, b) => ((a.destination ?? '') < (b.destination ?? '') ? -1 : 1))
}

function outcomeOf({ trace, probability }: Way): Outcome {
  return {
    verdict: trace.verdict,
    ...(trace.verdict === 'dnat'
      ? { destination: formatIpPort(trace.destination.ip, trace.destination.port) }
      : {}),
    sourceReplaced: trace.masquerade,
    percent: Math.round(probability * 10_000) / 100,
  }
}

/** Selects the outcome whose path is shown: the first that is not among the others, otherwise the first. */
export function shownOf(outcomes: readonly Outcome[], others: readonly Outcome[]): Outcome | undefined {
  return missingIn(outcomes, others) ?? outcomes[0]
}

export function missingIn(outcomes: readonly Outcome[], others: readonly Outcome[]): Outcome | undefined {
  return outcomes.find(its => !others.some(other => isAlike(its, other)))
}

function isAlike(a: Outcome, b: Outcome): boolean {
  return a.verdict === b.verdict && a.destination === b.destination && a.sourceReplaced === b.sourceReplaced
}

/** Gives the rules that take effect on the way to an outcome; on the first way where none leads there. */
export function stepsTo(ways: readonly Way[], outcome: Outcome | undefined): readonly TraceStep[] {
  const way = ways.find(its => outcome !== undefined && isAlike(outcomeOf(its), outcome)) ?? ways[0]
  return (way?.trace.steps ?? []).map(({ chain, rule, text, elements }) => ({ chain, rule, text, elements }))
}

/** Numbers of Services and of rules differ between equal rules. Other programs write into the tables of iptables. */
function pathKey(steps: readonly TraceStep[]): string {
  return JSON.stringify(steps.map(({ chain, text }) => (IN_XT_TABLE.test(chain) ? chain : [chain, text])))
}

const IN_XT_TABLE = /^ip6? (?:mangle|filter|nat) /

/**
 * Reads the base chains of other programs that have rules, or a policy that drops. In tables of iptables, jumps to
 * chains of ours are no such rules.
 */
async function readOthers(proxyName: string | undefined): Promise<readonly SurveyedChain[]> {
  const own = MODES.flatMap(({ tableName }) => tableName(proxyName) ?? [])
  const names = chainNames(proxyName)
  const isOurs = (name: string) => XT_TABLES.some(xt => isOurChain(names, xt, name) || isIpvsChain(xt, name))
  const isTheirs = ({ targets }: ForeignRule) => targets.length === 0 || !targets.every(isOurs)
  return await withNetfilter(async connection => {
    const chains = (await surveyChains(connection)).filter(
      // A table of traces starts them, and decides nothing about packets.
      ({ table, chain }) => chain.hook !== undefined && !own.includes(table) && !isTraceTable(table),
    )
    const tables = await surveyTables(connection, chains)
    return chains.filter(({ family, table, chain: { name, hook } }) => {
      const its = tables.find(each => each.family === family && each.name === table)?.chains
      const rules = its?.find(each => each.name === name)?.rules
      return rules !== undefined && (hook?.policy !== undefined || rules.some(isTheirs))
    })
  })
}

/** Reads the rules of the tables with these chains that IP packets pass. */
export async function surveyTables(connection: Connection, chains: readonly SurveyedChain[]) {
  const tables: ForeignTable<HookFamily>[] = []
  for (const { family, table: name } of chains)
    if (isHookFamily(family) && !tables.some(each => each.family === family && each.name === name))
      tables.push(await surveyTable(connection, { family, name }))
  return tables
}

/** Names the chains that a packet of this family passes on the way to one of the wanted outcomes. Pure. */
function othersOnWay(
  chains: readonly SurveyedChain[],
  { packet, localIps, wanted }: KernelQuestion,
): readonly string[] {
  const isHere = (destination: string) => [...localIps].some(ip => isAt(destination, ip))
  const family = familyOf(packet.destination) === 'IPv4' ? 'ip' : 'ip6'
  const hooks = new Set(packet.origin === 'process' ? [NF_INET_LOCAL_OUT] : [NF_INET_PRE_ROUTING])
  for (const { verdict, destination = formatIpPort(packet.destination, packet.destinationPort) } of wanted) {
    if (verdict === 'reject' || verdict === 'drop') continue
    if (packet.origin === 'process') hooks.add(NF_INET_POST_ROUTING)
    else if (isHere(destination)) hooks.add(NF_INET_LOCAL_IN)
    else hooks.add(NF_INET_FORWARD).add(NF_INET_POST_ROUTING)
  }
  return chains
    .filter(
      ({ family: its, chain }) => (its === family || its === 'inet') && hooks.has(chain.hook?.hooknum ?? -1),
    )
    .map(({ family, table, chain }) => `${family} ${table} ${chain.name}`)
    .sort()
}

function isAt(destination: string, ip: Ip): boolean {
  return destination.startsWith(formatIpPort(ip, 0).slice(0, -1))
}

/** Reads the rules of the configuration's mode from the kernel, and traces the packet through them. */
export async function askKernel(config: Config, question: KernelQuestion): Promise<KernelOutcome> {
  try {
    const { serviceProxyName: proxyName, proxyMode } = config
    const { held } = await readModes({ ...HERE, families: NFT_FAMILIES, proxyName })
    const found = kernelOutcome(held, proxyMode, question)
    const others = othersOnWay(await readOthers(proxyName), question)
    const outcome =
      found.kind === 'same' && found.listener !== undefined
        ? relayedOutcome(found, question, readListening())
        : found.kind === 'same'
          ? (unforwarded(question) ?? found)
          : found
    return { ...outcome, ...(others.length === 0 ? {} : { others }) }
  } catch (error) {
    return { kind: 'unknown', reason: oneLine(failureText(error)) }
  }
}

export function kernelOutcome(
  held: readonly HeldMode[],
  mode: Config['proxyMode'],
  { packet, localIps, wanted, ways: computed, isRelayed = false }: KernelQuestion,
): KernelOutcome {
  const found = held.find(its => its.mode === mode)
  if (found === undefined) {
    const others = held.map(its => its.mode).join(' and ')
    const instead = others === '' ? '' : `; those of ${others} mode are`
    return { kind: 'absent', reason: `rules of ${mode} mode are not in the kernel${instead}` }
  }
  // The question is about a new client, so that session affinity has no entry for it.
  const { traced, obstacle, localIps: own } = found.rulesForNewClients?.() ?? found.rules
  const ways = tracerOf(traced()).ways(packet, { localIps: new Set([...localIps, ...own]) })
  const outcomes = outcomesOf(ways)
  if (isRelayed && outcomes.every(({ verdict }) => verdict === 'accept'))
    return { kind: 'same', listener: formatIpPort(packet.destination, packet.destinationPort) }
  const hook = packet.origin === 'process' ? 'output' : 'prerouting'
  const obstructed = obstacle(familyOf(packet.source), hook)
  const isSame = keyOf(outcomes, mode) === keyOf(wanted, mode)
  const forwards = findMode(mode).forwards === true
  const path = stepsTo(ways, outcomes[0])
  const isOther =
    isSame && !forwards && computed !== undefined && pathKey(path) !== pathKey(stepsTo(computed, wanted[0]))
  // A damaged rule set may reach the specified outcome by another rule.
  const isLucky = isOther && obstructed !== undefined && wanted.some(({ verdict }) => verdict !== 'accept')
  if (isSame && !isLucky) {
    const listener = forwards ? outcomes[0]?.destination : undefined
    return {
      kind: 'same',
      ...(listener === undefined ? {} : { listener }),
      ...(isOther ? { rules: path } : {}),
    }
  }
  const reason = obstructed ?? (isServed(wanted) ? whyNotReached(found, packet) : undefined)
  return {
    kind: 'different',
    part: 'rules',
    outcomes,
    ...(reason === undefined ? {} : { reason }),
    rules: stepsTo(ways, shownOf(outcomes, wanted)),
  }
}

function isServed(outcomes: readonly Outcome[]): boolean {
  return outcomes.some(({ verdict }) => verdict === 'dnat')
}

/** Gives the reason why the rules of the kernel do not lead the packet to its frontend, as `kprobe dump` names it. */
function whyNotReached(
  { mode, rows }: Pick<HeldMode, 'mode' | 'rows'>,
  { destination, destinationPort, protocol }: TracePacket,
): string | undefined {
  const place = formatIpPort(destination, destinationPort)
  const anywhere = `${familyOf(destination) === 'IPv4' ? '*' : '[*]'}:${destinationPort}`
  const name = Object.entries(PROTOCOL_NUMBERS).find(([, number]) => number === protocol)?.[0]
  const isIts = (row: ServiceRow) =>
    row.protocol === name && (row.frontend === place || row.frontend === anywhere)
  const row = rows.find(isIts)
  if (row === undefined) return `no rule of ${mode} mode is for ${place}`
  return row.problem?.startsWith(NOT_REACHED) === true
    ? row.problem.slice(row.problem.indexOf(': ') + 2)
    : undefined
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
  const outcomes: readonly Outcome[] = [{ verdict: 'reject', sourceReplaced: false, percent: 100 }]
  return { kind: 'different', part: 'relay', reason, outcomes, rules: [] }
}

/**
 * Gives the outcome on a node that forwards at no interface: only its own processes, and clients of its own endpoints,
 * are served. Undefined where it forwards, where nothing is to be forwarded, and where the settings cannot be read.
 */
export function unforwarded(
  { packet, localIps, wanted }: KernelQuestion,
  sysctls?: string,
): KernelOutcome | undefined {
  const isForwarded = ({ destination }: Outcome) =>
    destination !== undefined && ![...localIps].some(ip => isAt(destination, ip))
  if (packet.origin === 'process' || !wanted.some(isForwarded)) return undefined
  const reason = whyUnforwarded(familyOf(packet.destination), sysctls)
  if (reason === undefined) return undefined
  return {
    kind: 'different',
    part: 'forwarding',
    outcomes: wanted.map(each =>
      isForwarded(each) ? { verdict: 'drop', sourceReplaced: false, percent: each.percent } : each,
    ),
    reason,
    rules: [],
  }
}

/**
 * Tests whether the kernel does something else. Missing rules count only if a running daemon should have written them.
 */
export function isElsewhere(kernel: KernelOutcome, wanted: readonly Outcome[], hasDaemon: boolean): boolean {
  if (kernel.kind === 'different') return true
  return kernel.kind === 'absent' && hasDaemon && wanted.some(({ verdict }) => verdict !== 'accept')
}

/** The kernel of a mode that relays knows only the listener; only the daemon knows the endpoints. */
function keyOf(outcomes: readonly Outcome[], mode: Config['proxyMode']): string {
  if (findMode(mode).forwards !== true) return JSON.stringify(outcomes)
  return JSON.stringify([...new Set(outcomes.map(({ verdict }) => verdict))].sort())
}
