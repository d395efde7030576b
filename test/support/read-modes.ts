import { PersistentMap } from '../../src/base/collections.ts'
import { assert } from '../../src/base/errors.ts'
import type { Observed, ObservedChain, Table } from '../../src/kernel/nft/state.ts'
import { compileRule } from '../../src/kernel/xt/compile.ts'
import type { XtRule } from '../../src/kernel/xt/rule.ts'
import { builtinHook, type XtChain, type XtJump } from '../../src/kernel/xt/scope.ts'
import { namesOfElements } from '../../src/modes/common/service-names.ts'
import { NFT_FAMILIES } from '../../src/modes/common/tables.ts'
import { jumpsOf } from '../../src/modes/iptables/chains.ts'
import { wantedChains } from '../../src/modes/iptables/mode.ts'
import { heldIn as iptablesHeldIn } from '../../src/modes/iptables/show.ts'
import type { IptablesState } from '../../src/modes/iptables/state.ts'
import { heldIn as ipvsHeldIn, type ReadIpvs } from '../../src/modes/ipvs/show.ts'
import type { IpvsState } from '../../src/modes/ipvs/state.ts'
import type { HeldMode } from '../../src/modes/mode.ts'
import { adoptRuleset } from '../../src/modes/nftables/observe.ts'
import { heldIn as nftablesHeldIn } from '../../src/modes/nftables/show.ts'
import type { NftablesState } from '../../src/modes/nftables/state.ts'
import { heldIn as userspaceHeldIn } from '../../src/modes/userspace/show.ts'
import { resolveElement, type UserspaceState } from '../../src/modes/userspace/state.ts'
import { KUBE_CHAINS } from '../../src/modes/xt-common/layout.ts'
import { type ReadChain, readChains } from '../../src/modes/xt-common/read-chains.ts'
import { ip } from './pipeline.ts'
import { LOCAL_IPS } from './scenario.ts'

/* What commands would read of a kernel that holds a computed state. */

export interface ReadModes {
  /** Elements grouped by Service. */
  readonly nftables: readonly Table[]
  readonly userspace: readonly Table[]
  /** All chains of the tables of iptables. */
  readonly iptables: readonly ReadChain[]
  readonly ipvs: Omit<ReadIpvs, 'chains'> | undefined
}

const NOTHING: ReadModes = { nftables: [], userspace: [], iptables: [], ipvs: undefined }

export function heldModes({ nftables, userspace, iptables, ipvs }: ReadModes): readonly HeldMode[] {
  return [
    nftablesHeldIn(nftables, NFT_FAMILIES),
    ipvs && ipvsHeldIn({ ...ipvs, chains: iptables }, NFT_FAMILIES),
    iptablesHeldIn(iptables, KUBE_CHAINS),
    userspaceHeldIn(userspace, NFT_FAMILIES),
  ].filter(held => held !== undefined)
}

export function readNftables({ ruleset }: Pick<NftablesState, 'ruleset'>): ReadModes {
  return { ...NOTHING, nftables: adoptRuleset(ruleset).ruleset.tables }
}

export function readUserspace({ ruleset }: Pick<UserspaceState, 'ruleset'>): ReadModes {
  return { ...NOTHING, userspace: ruleset.tables.map(listening) }
}

/** Each listener at a port of its own. */
function listening(table: Table): Table {
  const ports = new Map<string, number>()
  const portOf = (...listener: readonly string[]) => {
    const key = listener.join(' ')
    const port = ports.get(key) ?? 30_000 + ports.size
    ports.set(key, port)
    return port
  }
  const all = [...table.elements.values()].flat()
  const elements = all.map(element => resolveElement(element, table.family, portOf))
  return { ...table, elements: PersistentMap.from([['all', elements]]) }
}

export function readIptablesMode(state: IptablesState): ReadModes {
  assert(state.kind === 'rendered', 'nothing was rendered')
  return { ...NOTHING, iptables: chainsRead([...wantedChains(state)], jumpsOf(state.statics)) }
}

export function readIpvsMode(state: IpvsState): ReadModes {
  const { chains, ruleset } = state
  const common = chains.kind === 'wanted' ? chains.fixed : undefined
  const iptables = common === undefined ? [] : chainsRead([...common.chains.values()], [...common.jumps])
  const ipvs = { state, names: namesOfElements(ruleset.tables), localIps: LOCAL_IPS.map(ip) }
  return { ...NOTHING, iptables, ipvs }
}

/** As iptables-nft has them: rules as bytes, sets by number. */
function chainsRead(chains: readonly XtChain[], jumps: readonly XtJump[]): readonly ReadChain[] {
  const sets: string[] = []
  const indexOf = (name: string) => {
    if (!sets.includes(name)) sets.push(name)
    return sets.indexOf(name)
  }
  const observed = new Map<string, { chains: Map<string, ObservedChain> }>()
  const add = ({ family, table }: XtChain | XtJump, name: string, rules: readonly XtRule[]) => {
    const place = observed.get(`${family} ${table}`) ?? { chains: new Map() }
    observed.set(`${family} ${table}`, place)
    const read = rules.map(rule => ({
      handle: 0n,
      compiled: compileRule(rule, family, indexOf).compiled,
    }))
    const before = place.chains.get(name)?.rules ?? []
    const isBuiltin = /^[A-Z]+$/.test(name)
    const hook = isBuiltin ? builtinHook(table, name) : undefined
    place.chains.set(name, { name, hook, rules: [...read, ...before] })
  }
  for (const chain of chains) add(chain, chain.name, [...chain.rules, ...chain.last])
  for (const jump of jumps) add(jump, jump.chain, [jump.rule])
  const seen: Observed = observed
  return readChains(seen, { names: KUBE_CHAINS, nameOfIpset: index => sets[index] ?? '' })
}
