import {
  NF_INET_FORWARD,
  NF_INET_LOCAL_IN,
  NF_INET_LOCAL_OUT,
  NF_INET_POST_ROUTING,
  NF_INET_PRE_ROUTING,
  NFT_REG_VERDICT,
} from '../../../src/kernel/nft/constants.ts'
import type { ExpressionAttributes } from '../../../src/kernel/nft/schema.ts'
import { refuse } from './call.ts'
import { checkReachable } from './extensions.ts'
import type { FakeChain, FakeTable } from './objects.ts'

/** NFT_JUMP_STACK_SIZE. */
const DEPTH_MAX = 16

/** Hooks at which an expression may be reached; those that translate addresses want a chain of type nat, too. */
const HOOKS: ReadonlyMap<string, { readonly nat: boolean; readonly hooks: readonly number[] }> = new Map([
  ['nat', { nat: true, hooks: [NF_INET_PRE_ROUTING, NF_INET_LOCAL_OUT] }],
  ['masq', { nat: true, hooks: [NF_INET_POST_ROUTING] }],
  [
    'reject',
    { nat: false, hooks: [NF_INET_LOCAL_IN, NF_INET_FORWARD, NF_INET_LOCAL_OUT, NF_INET_PRE_ROUTING] },
  ],
])

/**
 * nft_table_validate: from every base chain, that nothing leads deeper than 16 chains (a loop does: EMLINK), and that
 * no expression is reached where it does not work (EOPNOTSUPP). Chains that nothing leads to are not looked at.
 */
export function checkTable(table: FakeTable): void {
  for (const chain of table.chains.values()) {
    if (chain.hook !== undefined) new Walk(table, chain).chain(chain, 0)
  }
}

class Walk {
  readonly #table: FakeTable
  readonly #base: FakeChain
  readonly #seen = new Set<string>()

  constructor(table: FakeTable, base: FakeChain) {
    this.#table = table
    this.#base = base
  }

  chain(chain: FakeChain, depth: number): void {
    if (depth >= DEPTH_MAX) refuse('EMLINK')
    if (this.#seen.has(`${depth} ${chain.name}`)) return
    this.#seen.add(`${depth} ${chain.name}`)
    for (const rule of chain.rules) {
      for (const expression of rule.expressions) {
        this.#checkHook(expression)
        for (const name of this.#targets(expression)) {
          const target = this.#table.chains.get(name)
          if (target !== undefined) this.chain(target, depth + 1)
        }
      }
    }
  }

  #checkHook(expression: ExpressionAttributes): void {
    if (expression.tag === 'match' || expression.tag === 'target') {
      checkReachable(expression, this.#table, this.#base)
      return
    }
    const wanted = HOOKS.get(expression.tag)
    if (wanted === undefined) return
    const at = this.#base.hook?.hooknum ?? -1
    if (!wanted.hooks.includes(at) || (wanted.nat && this.#base.type !== 'nat')) refuse('EOPNOTSUPP')
  }

  *#targets(expression: ExpressionAttributes): IterableIterator<string> {
    if (expression.tag === 'immediate') {
      const name = expression.data.data?.verdict?.chain
      if (name !== undefined) yield name
    }
    if (expression.tag !== 'lookup' || expression.data.dreg !== NFT_REG_VERDICT) return
    const elements = this.#table.sets.get(expression.data.set ?? '')?.elements.values() ?? []
    for (const { data } of elements) if (data?.verdict?.chain !== undefined) yield data.verdict.chain
  }
}
