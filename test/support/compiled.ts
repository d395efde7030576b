import type { Octets } from '../../src/base/octets.ts'
import { attributesOf } from '../../src/kernel/nft/expression-attributes.ts'
import type { Expression } from '../../src/kernel/nft/state.ts'
import { dumpedExpressions } from './fake-kernel/as-dumped.ts'

export function compiledOf(expressions: readonly Expression[]): Octets {
  const NFPROTO_IPV4 = 2
  return dumpedExpressions(
    expressions.map(each => attributesOf(each)),
    NFPROTO_IPV4,
  )
}
