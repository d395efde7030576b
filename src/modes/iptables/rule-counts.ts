import type { NftFamily, Observed } from '../../kernel/nft/state.ts'
import { builtinHook } from '../../kernel/xt/builtin.ts'
import { printRule } from '../../kernel/xt/print.ts'
import { readRule } from '../../kernel/xt/read.ts'
import { placeOfTable, type ScopeOperations, tableKey } from '../../kernel/xt/scope-operation.ts'
import { LAYOUTS, NFT_FAMILIES } from '../common/family.ts'
import { type ChainNames, isOurChain } from '../xt-common/layout.ts'
import { MARTIAN } from '../xt-common/rules-parts.ts'
import type { IptablesNumbers, TableRules } from './metrics.ts'

const TABLES = ['filter', 'nat'] as const

/**
 * Counts the rules in the kernel, and the batches that it rejected. As in kube-proxy's count, jumps in built-in
 * chains are not included, and the rule of KUBE-FIREWALL is.
 */
export class RuleCounts {
  readonly #names: ChainNames
  /** By `ip nat`. */
  #total = new Map<string, number>()
  #last = new Map<string, number>()
  #failures: IptablesNumbers['failures'] = { full: 0, partial: 0 }
  /** Returns whether the whole state was read since the last committed batch: the next batch is then a full sync. */
  #isFull = false

  constructor(names: ChainNames) {
    this.#names = names
  }

  observed(observed: Observed): void {
    this.#isFull = true
    this.#total = new Map()
    for (const [key, { chains }] of observed) {
      const place = placeOfTable(key)
      if (place === undefined) continue
      for (const { name, rules } of chains.values())
        if (isOurChain(this.#names, place.table, name)) grow(this.#total, key, rules.length)
        else if (name === this.#names.firewall)
          for (const { compiled } of rules) if (isMartian(compiled, place.family)) grow(this.#total, key, 1)
    }
  }

  committed(operations: ScopeOperations): void {
    this.#isFull = false
    this.#last = new Map()
    for (const operation of operations) {
      if (!('chain' in operation)) continue
      const { verb } = operation
      const added = verb === 'add-rule' || verb === 'insert-rule' ? 1 : 0
      const removed = verb === 'flush-chain' ? operation.rules : verb === 'delete-rule' ? 1 : 0
      if (added + removed === 0) continue
      const key = tableKey(operation)
      grow(this.#last, key, added)
      const isBase = builtinHook(operation.table, operation.chain) !== undefined
      if (!isBase) grow(this.#total, key, added - removed)
    }
  }

  rejected(): void {
    const { full, partial } = this.#failures
    this.#failures = this.#isFull ? { full: full + 1, partial } : { full, partial: partial + 1 }
  }

  numbers(): Pick<IptablesNumbers, 'rules' | 'failures'> {
    const rules = NFT_FAMILIES.flatMap(family =>
      TABLES.map((table): TableRules => {
        const key = `${family} ${table}`
        const counts = { total: this.#total.get(key) ?? 0, last: this.#last.get(key) ?? 0 }
        return { table, family: LAYOUTS[family].model, ...counts }
      }),
    )
    return { rules, failures: this.#failures }
  }
}

function isMartian(compiled: string, family: NftFamily): boolean {
  return printRule(readRule(compiled, family), family) === printRule(MARTIAN, family)
}

function grow(counts: Map<string, number>, key: string, by: number): void {
  counts.set(key, (counts.get(key) ?? 0) + by)
}
