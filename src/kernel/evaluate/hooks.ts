import type { Steps } from '../../base/clock.ts'
import {
  NF_ACCEPT,
  NF_DROP,
  NF_INET_LOCAL_IN,
  NF_INET_LOCAL_OUT,
  NF_INET_PRE_ROUTING,
  NF_IP_PRI_NAT_DST,
  NF_IP_PRI_NAT_SRC,
  NFT_TABLE_F_DORMANT,
} from '../nft/constants.ts'
import type { AnyTable } from '../nft/state.ts'
import type { Hook } from './box.ts'
import { classIn } from './class-machine.ts'
import {
  type CompiledChain,
  type CompiledTable,
  type CompileOptions,
  compileTable,
  orderOf,
} from './compiled.ts'
import type { IpvsClasses } from './ipvs.ts'
import type { CompiledRule } from './rule-index.ts'
import { noSets } from './sets.ts'

/** A chain that packets enter at a hook. */
export interface BaseChain {
  readonly chain: CompiledChain
  readonly hooknum: number
  readonly order: readonly number[]
  readonly isNat: boolean
  readonly policy: number
  /** The chain stands for IPVS. */
  readonly isIpvs?: true
}

export type HooksOptions = CompileOptions

/** Gives the chains at the hooks, in steps. */
export function hooksOf(tables: readonly AnyTable[], options: HooksOptions): Steps<Hooks> {
  return Hooks.of(tables, options)
}

interface Here {
  readonly table: AnyTable
  readonly compiled: CompiledTable
}

/** The chains of all programs at the hooks of one family, in the order of the kernel. */
export class Hooks {
  readonly tables: readonly CompiledTable[]
  /** Some chain may decide about packets that come back by the loopback device. */
  readonly isReceived: boolean
  readonly #bases = new Map<number, readonly BaseChain[]>()

  static *of(tables: readonly AnyTable[], options: CompileOptions): Steps<Hooks> {
    const here: Here[] = []
    for (const table of tables) {
      // The kernel calls no chain of a dormant table.
      const isCalled = (table.flags & NFT_TABLE_F_DORMANT) === 0
      if (isCalled && (table.family === options.family || table.family === 'inet'))
        here.push({ table, compiled: yield* compileTable(table, options) })
    }
    return new Hooks(here, options)
  }

  private constructor(here: readonly Here[], options: CompileOptions) {
    const bases: BaseChain[] = []
    this.tables = here.map(({ table, compiled }) => {
      for (const chain of table.chains.values()) {
        const own = chain.hook && compiled.chains.get(chain.name)
        if (chain.hook === undefined || own === undefined) continue
        const { hooknum, type, policy = NF_ACCEPT } = chain.hook
        bases.push({ chain: own, hooknum, order: orderOf(chain), isNat: type === 'nat', policy })
      }
      return compiled
    })
    // Packets that come back have passed IPVS.
    this.isReceived = bases.some(
      ({ hooknum, isNat, chain, policy }) =>
        RECEIVING.includes(hooknum) && !isNat && (chain.rules.length > 0 || policy === NF_DROP),
    )
    if (options.ipvs !== undefined) bases.push(...ipvsChains(options.ipvs, options))
    bases.sort((a, b) => (a.order[0] ?? 0) - (b.order[0] ?? 0) || (a.order[1] ?? 0) - (b.order[1] ?? 0))
    for (const hooknum of [0, 1, 2, 3, 4])
      this.#bases.set(
        hooknum,
        bases.filter(each => each.hooknum === hooknum),
      )
  }

  at(hooknum: number): readonly BaseChain[] {
    return this.#bases.get(hooknum) ?? []
  }

  /** Says which nat chains, of us and of another program, are followed in an order that may not be the kernel's. */
  *ties(): Generator<string, void, undefined> {
    for (const bases of this.#bases.values())
      for (const [index, { chain, order, isNat }] of bases.entries())
        for (const later of bases.slice(index + 1)) {
          if (!isNat || !later.isNat || later.order[1] !== order[1]) continue
          if (chain.table.isOwn === later.chain.table.isOwn) continue
          const [first, second] = [chain, later.chain].map(({ table, name }) => `${table.name} ${name}`)
          yield `${first} comes before ${second}, which has the same priority: the kernel's order cannot be read`
        }
  }
}

const RECEIVING: readonly number[] = [NF_INET_PRE_ROUTING, NF_INET_LOCAL_IN]

export const HOOKNUM: Readonly<Record<Hook, number>> = {
  prerouting: NF_INET_PRE_ROUTING,
  output: NF_INET_LOCAL_OUT,
}

/** Where ip_vs_ops stand: in front of the nat chains of LOCAL_IN, and behind those of LOCAL_OUT. */
const IPVS_HOOKS: readonly (readonly [hooknum: number, priority: number])[] = [
  [NF_INET_LOCAL_IN, NF_IP_PRI_NAT_SRC - 2],
  [NF_INET_LOCAL_OUT, NF_IP_PRI_NAT_DST + 2],
]

function ipvsChains(ipvs: IpvsClasses, { family, log }: CompileOptions): readonly BaseChain[] {
  const name = 'IPVS'
  const table: CompiledTable = {
    name,
    isOwn: false,
    sets: noSets(log),
    chains: new Map(),
    family,
    isOwnChain: () => false,
    known: new WeakMap(),
  }
  const rule: CompiledRule = {
    expressions: [
      {
        kind: 'extension',
        isPure: false,
        run: machine => ipvs.balance(classIn(machine)),
        of: { kind: 'unknown', name, data: '' },
      },
    ],
    // What is beyond the evaluator is a difference.
    place: { table: name, chain: '', rule: undefined, isOwn: true },
    guard: { destination: undefined, port: undefined, protocol: undefined },
  }
  const chain: CompiledChain = {
    name,
    rules: [rule],
    table,
    isOwn: false,
    comparesBits: false,
    index: undefined,
    compared: ['nothing'],
  }
  return IPVS_HOOKS.map(([hooknum, priority]) => ({
    chain,
    hooknum,
    order: [priority, 0],
    isNat: false,
    policy: NF_ACCEPT,
    isIpvs: true,
  }))
}
