import {
  NF_ACCEPT,
  NF_DROP,
  NF_INET_LOCAL_IN,
  NF_INET_LOCAL_OUT,
  NF_INET_PRE_ROUTING,
  NF_IP_PRI_NAT_DST,
  NF_IP_PRI_NAT_SRC,
  NFT_TABLE_F_DORMANT,
} from '../../kernel/nft/constants.ts'
import type { AnyTable } from '../../kernel/nft/state.ts'
import { tracksConnections } from './beyond.ts'
import {
  type CompiledChain,
  type CompiledRule,
  type CompiledTable,
  type CompileOptions,
  compileTable,
  orderOf,
} from './compiled.ts'
import type { IpvsClasses } from './ipvs.ts'
import { noSets } from './sets.ts'

export interface BaseChain {
  readonly chain: CompiledChain
  readonly hooknum: number
  readonly order: readonly number[]
  readonly isNat: boolean
  readonly policy: number
  /** Nat chains of other tables that the kernel may call before it. */
  readonly ties: readonly CompiledChain[]
  readonly isIpvs?: true
}

/** The chains of all programs at the hooks of one family, in the order of the kernel. */
export class Hooks {
  readonly tables: readonly CompiledTable[]
  /** Some chain may decide about packets that come back by the loopback device. */
  readonly isReceived: boolean
  /** A rule lets the kernel track connections: otherwise packets pass no nat chain. */
  readonly isTracked: boolean
  readonly #bases = new Map<number, readonly BaseChain[]>()

  constructor(tables: readonly AnyTable[], options: CompileOptions) {
    const ofFamily = tables.filter(({ family }) => family === options.family || family === 'inet')
    this.isTracked = options.ipvs !== undefined || ofFamily.some(hasTracking)
    const bases: BaseChain[] = []
    // The kernel calls no chain of a dormant table.
    const awake = ofFamily.filter(({ flags }) => (flags & NFT_TABLE_F_DORMANT) === 0)
    this.tables = awake.map(table => {
      const compiled = compileTable(table, options)
      for (const chain of table.chains.values()) {
        const own = chain.hook && compiled.chains.get(chain.name)
        if (chain.hook === undefined || own === undefined) continue
        const { hooknum, type, policy = NF_ACCEPT } = chain.hook
        bases.push({ chain: own, hooknum, order: orderOf(chain), isNat: type === 'nat', policy, ties: [] })
      }
      return compiled
    })
    // Packets that come back have passed IPVS.
    this.isReceived = bases.some(
      ({ hooknum, isNat, chain, policy }) =>
        RECEIVING.includes(hooknum) && !isNat && (chain.rules.length > 0 || policy === NF_DROP),
    )
    // The kernel calls the newest chain of a priority first.
    bases.reverse()
    if (options.ipvs !== undefined) bases.push(...ipvsChains(options.ipvs, options))
    bases.sort((a, b) => (a.order[0] ?? 0) - (b.order[0] ?? 0) || (a.order[1] ?? 0) - (b.order[1] ?? 0))
    for (const hooknum of [0, 1, 2, 3, 4])
      this.#bases.set(hooknum, withTies(bases.filter(each => each.hooknum === hooknum)))
  }

  at(hooknum: number): readonly BaseChain[] {
    return this.#bases.get(hooknum) ?? []
  }
}

/** A dump lists the chains of one table by age, so that only chains of different tables tie. */
function withTies(bases: readonly BaseChain[]): readonly BaseChain[] {
  return bases.map((base, index): BaseChain => {
    const isTied = ({ isNat, chain, order }: BaseChain) =>
      isNat && base.isNat && order[1] === base.order[1] && chain.table !== base.chain.table
    return { ...base, ties: bases.slice(index + 1).flatMap(its => (isTied(its) ? [its.chain] : [])) }
  })
}

function hasTracking({ chains }: AnyTable): boolean {
  for (const { rules } of chains.values()) if (rules.some(tracksConnections)) return true
  return false
}

const RECEIVING: readonly number[] = [NF_INET_PRE_ROUTING, NF_INET_LOCAL_IN]

/** The priorities of ip_vs_in_hook: in front of the nat chains of LOCAL_IN, and behind those of LOCAL_OUT. */
const IPVS_HOOKS: readonly (readonly [hooknum: number, priority: number])[] = [
  [NF_INET_LOCAL_IN, NF_IP_PRI_NAT_SRC - 1],
  [NF_INET_LOCAL_OUT, NF_IP_PRI_NAT_DST + 2],
]

function ipvsChains(ipvs: IpvsClasses, { family, log }: CompileOptions): readonly BaseChain[] {
  const name = 'IPVS'
  const table: CompiledTable = {
    name,
    sets: noSets(log),
    chains: new Map(),
    family,
    isOwnChain: () => false,
  }
  const rule: CompiledRule = {
    expressions: [
      {
        kind: 'extension',
        isPure: false,
        run: machine => ipvs.balance(machine),
        of: { kind: 'unknown', name, data: '' },
      },
    ],
    // What is beyond the evaluator is a difference.
    place: { table: name, chain: '', rule: undefined, isOwn: true },
    guard: { destination: undefined, port: undefined },
  }
  const chain: CompiledChain = {
    name,
    rules: [rule],
    table,
    isOwn: false,
    comparesBits: false,
  }
  return IPVS_HOOKS.map(([hooknum, priority]) => ({
    chain,
    hooknum,
    order: [priority, 0],
    isNat: false,
    policy: NF_ACCEPT,
    ties: [],
    isIpvs: true,
  }))
}
