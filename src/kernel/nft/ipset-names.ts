import { NetlinkError } from '../../netlink/errors.ts'
import { SystemError } from '../../netlink/transport.ts'
import { isCompiled } from './compiled-rule.ts'
import { type IndexOfIpset, missingIpset, type NameOfIpset } from './ipset-match.ts'
import { addsRule, type Operation, type RuleAddition, type Transaction } from './operation.ts'

/**
 * Maps names of ipsets of this network namespace to the numbers that the kernel's rules have. A number stays with its
 * name when two sets are swapped, and with its set while a rule refers to it.
 */
export interface IpsetNames {
  /** Throws NetlinkError or SystemError when the lookup fails. */
  readonly indexOf: IndexOfIpset
  readonly nameOf: NameOfIpset
}

/** Caches lookups during one commit or one listing: each set is looked up once. */
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

/** Returns the added rules whose sets do not exist or cannot be looked up. Compiled rules contain numbers already. */
export function unwritableRules(transaction: Transaction, indexOf: IndexOfIpset): readonly UnwritableRule[] {
  const unwritable: UnwritableRule[] = []
  for (const operation of transaction) {
    const error = addsRule(operation) ? whyUnwritable(operation, indexOf) : undefined
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
