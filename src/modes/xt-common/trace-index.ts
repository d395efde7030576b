import type { Ip } from '../../base/ip.ts'
import type { PacketState } from '../../kernel/nft/trace-packet.ts'
import type { XtRule } from '../../kernel/xt/rule.ts'

/** Shorter chains are walked rule by rule. */
const INDEXED_FROM = 32

type Place = readonly [index: number, rule: XtRule]

/**
 * Finds the rules of a long chain that a packet can match without a look at all of them: nearly every rule of a chain
 * that all Services share is about one destination address, or one destination port.
 */
export interface RuleIndex {
  /** In the order of the chain. */
  candidates(state: Pick<PacketState, 'destination' | 'destinationPort'>): readonly Place[]
}

/** Undefined for a chain that is short. */
export function indexRules(rules: readonly XtRule[]): RuleIndex | undefined {
  if (rules.length < INDEXED_FROM) return undefined
  const byAddress = new Map<Ip, Place[]>()
  const byPort = new Map<number, Place[]>()
  const others: Place[] = []
  for (const place of rules.entries()) {
    const ip = hostOf(place[1])
    const port = ip === undefined ? portOf(place[1]) : undefined
    if (ip !== undefined) append(byAddress, ip, place)
    else if (port !== undefined) append(byPort, port, place)
    else others.push(place)
  }
  return {
    candidates({ destination, destinationPort }) {
      const found = [...others, ...(byAddress.get(destination) ?? []), ...(byPort.get(destinationPort) ?? [])]
      return found.sort(([a], [b]) => a - b)
    },
  }
}

function append<K>(lists: Map<K, Place[]>, key: K, place: Place): void {
  const list = lists.get(key)
  if (list === undefined) lists.set(key, [place])
  else list.push(place)
}

function hostOf({ destination }: XtRule): Ip | undefined {
  if (destination === undefined || destination.inverted) return undefined
  return /^\xff*$/.test(destination.mask) ? destination.ip : undefined
}

function portOf({ matches }: XtRule): number | undefined {
  for (const match of matches) {
    if (match.kind !== 'tcp' && match.kind !== 'udp' && match.kind !== 'sctp') continue
    const { destinationPorts: ports } = match
    if (ports !== undefined && ports.from === ports.to && !ports.inverted) return ports.from
  }
  return undefined
}
