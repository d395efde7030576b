import { NetlinkError } from '../../netlink/errors.ts'
import { SystemError } from '../../netlink/transport.ts'
import { isCompiled } from './compiled-rule.ts'
import { type IndexOfIpset, missingIpset, type NameOfIpset } from './ipset-match.ts'
import type { Operation, RuleAddition, Transaction } from './operation.ts'

/**
 * What the ipsets of this network namespace are called: the kernel's rules know them by number. A number stays with its
 * name when two sets are swapped, and with its set for as long as a rule refers to it.
 */
export interface IpsetNames {
  /** Throws NetlinkError or SystemError when that cannot be found out. */
  readonly indexOf: IndexOfIpset
  readonly nameOf: NameOfIpset
}

/** For the time of one commit or one listing: asks only once about each set. */
export function rememberIpsets(names: IpsetNames | undefined): IpsetNames {
  if (names === undefined) return { indexOf: () => undefined, nameOf: () => undefined }
  return {
    indexOf: remembered(name => names.indexOf(name)),
    nameOf: remembered(index => names.nameOf(index)),
  }
}

function remembered<K, V>(ask: (key: K) => V): (key: K) => V {
  const known = new Map<K, { readonly value: V }>()
  return key => {
    const answer = known.get(key) ?? { value: ask(key) }
    known.set(key, answer)
    return answer.value
  }
}

export interface UnwritableRule {
  readonly operation: Operation
  readonly error: NetlinkError | SystemError
}

/** Additions of rules about sets that do not exist, or that nothing could be found out about; compiled rules have numbers. */
export function unwritableRules(transaction: Transaction, indexOf: IndexOfIpset): readonly UnwritableRule[] {
  const unwritable: UnwritableRule[] = []
  for (const operation of transaction) {
    const adds = operation.verb === 'add-rule' || operation.verb === 'insert-rule'
    const error = adds ? whyUnwritable(operation, indexOf) : undefined
    if (error !== undefined) unwritable.push({ operation, error })
  }
  return unwritable
}

function whyUnwritable({ rule }: RuleAddition, indexOf: IndexOfIpset): UnwritableRule['error'] | undefined {
  if (isCompiled(rule)) return undefined
  for (const expression of rule.expressions) {
    if (expression.kind !== 'ipset') continue
    try {
      if (indexOf(expression.set) === undefined) return missingIpset(expression.set)
    } catch (error) {
      if (error instanceof NetlinkError || error instanceof SystemError) return error
      throw error
    }
  }
  return undefined
}
