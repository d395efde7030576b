import type { Family } from '../base/ip.ts'
import { type HandledRule, listHandles } from '../kernel/nft/list.ts'
import type { NftFamily } from '../kernel/nft/state.ts'
import { printRule } from '../kernel/xt/print.ts'
import { readRule } from '../kernel/xt/read.ts'
import type { Connection } from '../netlink/connection.ts'
import { isRejecting, refusingRules, type VerdictReason, verdictReason } from './common/logs.ts'
import {
  CHAIN_FIREWALL,
  CHAIN_LATE_OUTPUT,
  CHAIN_LATE_PREROUTING,
  CHAIN_LOCALHOST,
  CHAIN_NO_LOCAL,
  CHAIN_REJECT,
  CHAIN_SERVICES,
} from './common/rules.ts'
import { LAYOUTS, NFT_FAMILIES } from './common/tables.ts'
import { MODES } from './registry.ts'
import { chainNames } from './xt-common/layout.ts'

/** Packets that rules of kprobe refused since they were written. */
export interface RefusedCount {
  readonly family: Family
  readonly verdict: 'reject' | 'drop'
  /** `no-endpoints-or-port` where one rule counts both. */
  readonly reason: VerdictReason | 'no-endpoints-or-port'
  /** `namespace/name:port`; empty where the rules are those of all Services. */
  readonly service: string
  readonly packets: number
}

/** Chains of our own tables whose rules drop, or reject for one reason. */
const REFUSING = [
  CHAIN_NO_LOCAL,
  CHAIN_FIREWALL,
  CHAIN_LATE_PREROUTING,
  CHAIN_LATE_OUTPUT,
  CHAIN_LOCALHOST,
] as const

/**
 * Reads the counters of the rules that reject or drop: the kernel counts them always, with and without a log. In the
 * tables of iptables each Service has rules of its own. A commit meanwhile may tear the counts. Throws NetlinkError.
 */
export async function readRefused(
  connection: Connection,
  proxy: string | undefined,
): Promise<readonly RefusedCount[]> {
  const tables = new Set(MODES.flatMap(({ tableName }) => tableName(proxy) ?? []))
  const counts: RefusedCount[] = []
  for (const family of NFT_FAMILIES) {
    for (const table of tables) counts.push(...(await ofOwnTable(connection, { family, table })))
    counts.push(...(await ofIptables(connection, family, proxy)))
  }
  return added(counts)
}

/** Adds up the rules of one reason and Service, such as those of its addresses, and leaves out what refused no packet. */
function added(counts: readonly RefusedCount[]): readonly RefusedCount[] {
  const sums = new Map<string, RefusedCount>()
  for (const each of counts) {
    const { packets, ...labels } = each
    const key = JSON.stringify(labels)
    if (packets > 0) sums.set(key, { ...each, packets: packets + (sums.get(key)?.packets ?? 0) })
  }
  return [...sums.values()]
}

async function ofOwnTable(
  connection: Connection,
  place: { readonly family: NftFamily; readonly table: string },
): Promise<readonly RefusedCount[]> {
  const family = LAYOUTS[place.family].model
  const rulesOf = (chain: string) => listHandles(connection, { ...place, chain })
  const countOf = (chain: string, packets: number): RefusedCount => {
    const reason = verdictReason({ chain, text: '', isServed: true })
    return { family, verdict: isRejecting(chain) ? 'reject' : 'drop', reason, service: '', packets }
  }
  const drops: RefusedCount[] = []
  for (const chain of REFUSING) drops.push(countOf(chain, sumOf(refusingRules(await rulesOf(chain)))))
  const rejected = countOf(CHAIN_REJECT, sumOf(refusingRules(await rulesOf(CHAIN_REJECT))))
  const toRefuse = (await rulesOf(CHAIN_SERVICES)).filter(
    ({ rule: { comment } }) => comment === 'no such port',
  )
  const isCounted = toRefuse.some(({ rule: { expressions } }) =>
    expressions.some(({ kind }) => kind === 'counter'),
  )
  if (!isCounted) return [...drops, { ...rejected, reason: 'no-endpoints-or-port' }]
  const noPort = Math.min(sumOf(toRefuse), rejected.packets)
  return [
    ...drops,
    { ...rejected, reason: 'no-such-port', packets: noPort },
    { ...rejected, packets: rejected.packets - noPort },
  ]
}

async function ofIptables(
  connection: Connection,
  family: NftFamily,
  proxy: string | undefined,
): Promise<readonly RefusedCount[]> {
  const { services, externalServices, nodePorts, proxyFirewall } = chainNames(proxy)
  const counts: RefusedCount[] = []
  for (const chain of [services, externalServices, nodePorts, proxyFirewall])
    for (const each of refusingRules(await listHandles(connection, { family, table: 'filter', chain }))) {
      // 10,000 Services may have such a rule, most of which refuses nothing.
      if (each.packets === 0n) continue
      const text = printRule(readRule(each.compiled, family), family)
      const reason = verdictReason({ chain, text, isServed: true })
      const service = /--comment "?([^\s"/]+\/[^\s"]+) (?:has no|traffic not)/.exec(text)?.[1] ?? ''
      const verdict = isRejecting(reason) ? 'reject' : 'drop'
      counts.push({ family: LAYOUTS[family].model, verdict, reason, service, packets: sumOf([each]) })
    }
  return counts
}

function sumOf(rules: readonly HandledRule[]): number {
  return rules.reduce((sum, { packets }) => sum + Number(packets), 0)
}
