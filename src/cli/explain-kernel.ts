import { systemClock } from '../base/clock.ts'
import { failureText } from '../base/failure-text.ts'
import { formatIpPort, type Ip } from '../base/ip.ts'
import { oneLine } from '../base/text.ts'
import type { Config } from '../config/config.ts'
import { KERNEL } from '../daemon/open.ts'
import type { Way } from '../kernel/nft/trace.ts'
import type { TracePacket } from '../kernel/nft/trace-packet.ts'
import { NFT_FAMILIES } from '../modes/common/family.ts'
import type { HeldMode } from '../modes/mode.ts'
import { readModes } from '../modes/read.ts'
import { findMode } from '../modes/registry.ts'

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
export type KernelOutcome =
  /** The kernel agrees. `listener`: an address of the daemon, in userspace mode. */
  | { readonly kind: 'same'; readonly listener?: string }
  | { readonly kind: 'different'; readonly outcomes: readonly Outcome[]; readonly reason?: string }
  /** The kernel does not hold the rules of this mode. */
  | { readonly kind: 'absent'; readonly reason: string }
  | { readonly kind: 'unknown'; readonly reason: string }

export interface KernelQuestion {
  readonly packet: TracePacket
  readonly localIps: ReadonlySet<Ip>
  readonly wanted: readonly Outcome[]
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
    return kernelOutcome(read.held, config.proxyMode, question)
  } catch (error) {
    return { kind: 'unknown', reason: oneLine(failureText(error)) }
  }
}

export function kernelOutcome(
  held: readonly HeldMode[],
  mode: Config['proxyMode'],
  { packet, localIps, wanted }: KernelQuestion,
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
  if (keyOf(outcomes, mode) === keyOf(wanted, mode)) {
    const listener = findMode(mode).relays ? outcomes[0]?.destination : undefined
    return { kind: 'same', ...(listener === undefined ? {} : { listener }) }
  }
  const family = packet.source.length === 4 ? 'IPv4' : 'IPv6'
  const reason = obstacle(family, packet.origin === 'process' ? 'output' : 'prerouting')
  return { kind: 'different', outcomes, ...(reason === undefined ? {} : { reason }) }
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
