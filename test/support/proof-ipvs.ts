import { PersistentMap } from '../../src/base/collections.ts'
import type { IpvsHeld } from '../../src/kernel/ipvs/state.ts'
import type { AnyTable } from '../../src/kernel/nft/state.ts'
import type { Snapshot } from '../../src/model/snapshot.ts'
import { DEFAULT_IPVS_OPTIONS } from '../../src/modes/ipvs/settings.ts'
import type { IpvsState, PlacedServer } from '../../src/modes/ipvs/state.ts'
import { ipvsHeld, ipvsProving } from '../../src/modes/ipvs/trace.ts'
import type { Proving } from '../../src/modes/mode.ts'
import type { Proof } from '../../src/proof/prove.ts'
import { configFrom } from './parse-flags.ts'
import { ip, type PipelineConfig } from './pipeline.ts'
import { proofOf } from './proof.ts'
import { chainsWith, tablesOfChains } from './proof-iptables.ts'
import { LOCAL_IPS } from './scenario.ts'

/** What a kernel holds beside nf_tables after a commit of a state. */
export function heldOf(state: IpvsState): IpvsHeld {
  const held = ipvsHeld(state)
  return { ...held, addresses: [...LOCAL_IPS.map(ip), ...held.addresses] }
}

export const OWN_IPVS = DEFAULT_IPVS_OPTIONS.tableName

export function provingIpvs(rules: string): Proving {
  return ipvsProving({
    ipvs: { ...configFrom([]).ipvs, rules: rules === 'iptables' ? 'iptables' : 'nftables' },
  })
}

export const PROVING_IPVS: Proving = provingIpvs('nftables')

/** What a kernel without rules of other programs holds in nf_tables after a commit of a state. */
export function tablesOfIpvs({ ruleset, chains }: IpvsState): readonly AnyTable[] {
  const common = chains.kind === 'wanted' ? chains.fixed : undefined
  if (common === undefined) return ruleset.tables
  return [...ruleset.tables, ...tablesOfChains(chainsWith(common.chains.values(), common.jumps))]
}

export function proofOfIpvs(
  config: PipelineConfig,
  snapshot: Snapshot,
  { tables, held }: { readonly tables: readonly AnyTable[]; readonly held: IpvsHeld },
  rules = 'nftables',
): Proof {
  const ipvs = { held, ownName: OWN_IPVS }
  return proofOf(config, snapshot, tables, provingIpvs(rules), ipvs)
}

type Random = (bound: number) => number
export type Mutation = readonly [what: string, state: IpvsState]

/** Changes one object outside of nf_tables; undefined where the state has none of the kind. */
export function mutateOutside(state: IpvsState, random: Random): Mutation | undefined {
  const pick = <T>(map: PersistentMap<T>): readonly [string, T] | undefined => {
    const all = [...map.entries()]
    return all[random(Math.max(1, all.length))]
  }
  const without = <T>(map: PersistentMap<T>, key: string) =>
    PersistentMap.from([...map.entries()].filter(([its]) => its !== key))
  const kind = random(4)
  if (kind === 0) {
    const found = pick(state.entries)
    return found && [`entry of ${found[1].set} gone`, { ...state, entries: without(state.entries, found[0]) }]
  }
  if (kind === 1) {
    const found = pick(state.addresses)
    return found && ['address gone', { ...state, addresses: without(state.addresses, found[0]) }]
  }
  const found = pick(state.servers)
  if (found === undefined) return undefined
  const [key, placed] = found
  if (kind === 2) return [`${key} gone`, { ...state, servers: without(state.servers, key) }]
  const changed = mutateServer(placed, random)
  if (changed === undefined) return undefined
  const [what, server] = changed
  const servers = PersistentMap.from([...without(state.servers, key).entries(), [key, server]])
  return [`${key}: ${what}`, { ...state, servers }]
}

function mutateServer(placed: PlacedServer, random: Random): readonly [string, PlacedServer] | undefined {
  const all = [...placed.destinations]
  const at = random(Math.max(1, all.length))
  const [key, destination] = all[at] ?? []
  if (key === undefined || destination === undefined) return undefined
  const others = all.filter((_, index) => index !== at)
  const put = (its: typeof all): PlacedServer => ({ ...placed, destinations: new Map(its) })
  switch (random(3)) {
    case 0:
      return ['weight 0', put([...others, [key, { ...destination, weight: 0 }]])]
    case 1:
      return ['a real server gone', put(others)]
    default:
      return ['another port', put([...others, [`${key}1`, { ...destination, port: destination.port ^ 1 }]])]
  }
}
