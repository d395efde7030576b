import {
  NF_ACCEPT,
  NF_DROP,
  NF_INET_LOCAL_IN,
  NF_INET_PRE_ROUTING,
  NFT_TABLE_F_DORMANT,
} from '../kernel/nft/constants.ts'
import type { AnyTable, NftFamily } from '../kernel/nft/state.ts'
import { type CompiledChain, type CompiledTable, compileTable, type Ownership, orderOf } from './compiled.ts'
import type { MemoryLog } from './sets.ts'

/** A chain that packets enter at a hook. */
export interface BaseChain {
  readonly chain: CompiledChain
  readonly hooknum: number
  readonly order: readonly number[]
  readonly isNat: boolean
  readonly policy: number
}

/** The chains of all programs at the hooks of one family, in the order of the kernel. */
export class Hooks {
  readonly tables: readonly CompiledTable[]
  /** Some chain may decide about packets that come back by the loopback device. */
  readonly isReceived: boolean
  readonly #bases = new Map<number, readonly BaseChain[]>()

  constructor(
    tables: readonly AnyTable[],
    options: Ownership & { readonly family: NftFamily; readonly log: MemoryLog },
  ) {
    // The kernel calls no chain of a dormant table.
    const here = tables.filter(
      table =>
        (table.family === options.family || table.family === 'inet') &&
        (table.flags & NFT_TABLE_F_DORMANT) === 0,
    )
    const bases: BaseChain[] = []
    this.tables = here.map(table => {
      const compiled = compileTable(table, options)
      for (const chain of table.chains.values()) {
        const own = compiled.chains.get(chain.name)
        if (chain.hook === undefined || own === undefined) continue
        const { hooknum, type, policy = NF_ACCEPT } = chain.hook
        bases.push({ chain: own, hooknum, order: orderOf(chain), isNat: type === 'nat', policy })
      }
      return compiled
    })
    bases.sort((a, b) => (a.order[0] ?? 0) - (b.order[0] ?? 0) || (a.order[1] ?? 0) - (b.order[1] ?? 0))
    for (const hooknum of [0, 1, 2, 3, 4])
      this.#bases.set(
        hooknum,
        bases.filter(each => each.hooknum === hooknum),
      )
    this.isReceived = [...this.at(NF_INET_PRE_ROUTING), ...this.at(NF_INET_LOCAL_IN)].some(
      ({ isNat, chain, policy }) => !isNat && (chain.rules.length > 0 || policy === NF_DROP),
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
