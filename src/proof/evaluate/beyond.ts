import {
  NFT_CT_MARK,
  NFT_CT_ZONE,
  NFT_META_MARK,
  NFT_META_PRIORITY,
  NFT_PAYLOAD_TRANSPORT_HEADER,
} from '../../kernel/nft/constants.ts'
import { EXPRESSIONS } from '../../kernel/nft/schema.ts'
import type { Expression, Rule } from '../../kernel/nft/state.ts'
import { attributesOf } from '../../kernel/xt/expressions.ts'
import { HEADER_4, HEADER_6, TRANSPORT } from './values.ts'

/* What expressions do that the evaluator does not know. */

/** A load fills registers, a test may end its rule, data is both, and an effect may do anything to a packet. */
type Beyond = 'load' | 'test' | 'data' | 'effect' | 'nothing'

const CT_KEYS: readonly number[] = [NFT_CT_MARK, NFT_CT_ZONE]
const META_KEYS: readonly number[] = [NFT_META_MARK, NFT_META_PRIORITY]

/** Says what an expression does whose details are beyond the evaluator. */
export function beyondOf(expression: Expression): Beyond {
  switch (expression.kind) {
    case 'payload':
    case 'meta':
    case 'ct':
    case 'fib':
    case 'bitwise':
    case 'numgen':
    case 'jhash':
      return 'load'
    case 'lookup':
      return expression.dreg === undefined ? 'test' : expression.dreg === 'verdict' ? 'effect' : 'data'
    case 'cmp':
    case 'limit':
    case 'ipset':
    case 'match':
    case 'dynset':
      return 'test'
    case 'meta-set':
      return META_KEYS.includes(expression.key) ? 'effect' : 'nothing'
    case 'unknown':
      return unknownOf(expression)
    default:
      return 'effect'
  }
}

const LOADS: readonly string[] = ['meta', 'fib', 'bitwise', 'numgen', 'rt', 'hash', 'exthdr', 'tunnel']
const NAMES: readonly (readonly [Beyond, readonly string[]])[] = [
  ['load', [...LOADS, 'xfrm', 'socket', 'osf', 'byteorder', 'immediate', 'inner']],
  ['test', ['cmp', 'range', 'limit', 'quota', 'connlimit', 'objref', 'dynset']],
  ['nothing', ['last', 'dup', 'flow_offload']],
]

function unknownOf(expression: Extract<Expression, { kind: 'unknown' }>): Beyond {
  const { name } = expression
  if (name === 'ct') {
    const { sreg, key = 0 } = attributesOf(EXPRESSIONS.ct, expression) ?? {}
    return sreg === undefined ? 'load' : CT_KEYS.includes(key) ? 'effect' : 'nothing'
  }
  if (name !== 'payload') return NAMES.find(([, names]) => names.includes(name))?.[0] ?? 'effect'
  const { sreg, base, offset = 0, length = 0 } = attributesOf(EXPRESSIONS.payload, expression) ?? {}
  if (sreg === undefined) return 'load'
  const layout = base === NFT_PAYLOAD_TRANSPORT_HEADER ? TRANSPORT : [...HEADER_4, ...HEADER_6]
  const isField = layout.some(its => its.offset < offset + length && offset < its.offset + its.length)
  return isField ? 'effect' : 'nothing'
}

const TRACKING: readonly string[] = ['ct', 'nat', 'masq', 'redir', 'connlimit', 'synproxy', 'objref']
const TRACKING_EXTENSIONS =
  /^(conn.*|CONN.*|state|helper|cluster|[SD]NAT|MASQUERADE|REDIRECT|NETMAP|CT|SYNPROXY)$/

/** Tests whether a rule enables connection tracking: a family without such a rule passes no nat chain. */
export function tracksConnections({ expressions }: Rule): boolean {
  return expressions.some(each => {
    if (each.kind === 'unknown') return TRACKING.includes(each.name)
    if (each.kind === 'match' || each.kind === 'target') return TRACKING_EXTENSIONS.test(each.name)
    return each.kind === 'ct' || each.kind === 'dnat' || each.kind === 'masquerade'
  })
}
