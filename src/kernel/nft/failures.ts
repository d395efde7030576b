import type { DatagramReplies } from '../../netlink/connection.ts'
import type { BurstError } from '../../netlink/conversation.ts'
import { errnoNumber, NetlinkError } from '../../netlink/errors.ts'
import type { NftFamily } from './state.ts'
import {
  addsRule,
  type EncodedTransaction,
  errorWordsOf,
  type Operation,
  type OwnedElement,
} from './transaction.ts'

export interface OperationFailure {
  readonly operation: Operation
  /** The rejected element if the kernel reported its offset, otherwise all elements of the message. */
  readonly elements: readonly OwnedElement[]
  readonly code: string
  readonly error: Error
}

export type Replies = Pick<DatagramReplies, 'errors' | 'loss'>

/** Tests whether the kernel had moved on from the generation that the batch named. */
export function isStale({ errors }: Replies): boolean {
  return errors.some(({ errno }) => errno === errnoNumber('ERESTART'))
}

/** Returns the failures. An error about the whole batch (on its first message) names the first operation, no element. */
export function failuresOf(
  replies: Replies,
  batch: EncodedTransaction,
  first: Operation,
): readonly OperationFailure[] {
  return isStale(replies) ? [] : replies.errors.map(error => failureOf(error, batch, first))
}

function failureOf(failed: BurstError, batch: EncodedTransaction, first: Operation): OperationFailure {
  const { sequence, errno, offset } = failed
  const operation = batch.operationAt(sequence)
  const elements = batch.elementsAt(sequence, offset)
  const words =
    operation === undefined
      ? { operation: 'commit', object: `nf_tables batch of ${batch.messages} messages` }
      : errorWordsOf(operation, elements)
  const extendedAck = failed.extendedAck ?? (operation && lackOf(operation, failed, batch))
  const error = new NetlinkError({ ...words, errno, extendedAck, offset, sequence })
  return { operation: operation ?? first, elements, code: error.code, error }
}

/** The kernel itself reports only ENOENT where a module is missing, and EOPNOTSUPP for a family. */
function lackOf(operation: Operation, { sequence, errno, offset }: BurstError, batch: EncodedTransaction) {
  if (operation.verb === 'add-table' && errno === errnoNumber('EOPNOTSUPP'))
    return `this kernel has no nf_tables for family ${operation.family}: build it with CONFIG_NF_TABLES_${operation.family === 'ip' ? 'IPV4' : 'IPV6'}`
  if (errno !== errnoNumber('ENOENT')) return undefined
  return missingPart(operation, offset === undefined ? undefined : batch.expressionAt(sequence, offset))
}

/** A part of nf_tables that distributions build as a separate module. */
interface Part {
  readonly module: string
  readonly option: string
}

/**
 * Modules by the expression that they provide, and the kernel options that build them. Sources: the aliases
 * `nft-expr-*` and `nft-chain-*` in modules.alias of Debian's 6.1 kernel; net/netfilter/Kconfig,
 * net/ipv4/netfilter/Kconfig and net/ipv6/netfilter/Kconfig. Expressions that are not listed belong to nf_tables
 * itself.
 */
const OF_EXPRESSIONS: Readonly<Record<string, Part | Readonly<Record<NftFamily, Part>>>> = {
  reject: {
    ip: { module: 'nft_reject_ipv4', option: 'CONFIG_NFT_REJECT_IPV4' },
    ip6: { module: 'nft_reject_ipv6', option: 'CONFIG_NFT_REJECT_IPV6' },
  },
  fib: {
    ip: { module: 'nft_fib_ipv4', option: 'CONFIG_NFT_FIB_IPV4' },
    ip6: { module: 'nft_fib_ipv6', option: 'CONFIG_NFT_FIB_IPV6' },
  },
  ct: { module: 'nft_ct', option: 'CONFIG_NFT_CT' },
  masq: { module: 'nft_masq', option: 'CONFIG_NFT_MASQ' },
  nat: { module: 'nft_nat', option: 'CONFIG_NFT_NAT' },
  numgen: { module: 'nft_numgen', option: 'CONFIG_NFT_NUMGEN' },
  hash: { module: 'nft_hash', option: 'CONFIG_NFT_HASH' },
}
const OF_CHAINS: Readonly<Record<string, Part>> = {
  nat: { module: 'nft_chain_nat', option: 'CONFIG_NFT_NAT' },
}

/**
 * Returns, as a sentence, the kernel part that is missing for an operation that the kernel rejected with ENOENT.
 * `expression` is the kernel's name of the expression that it could not parse in a rule; undefined where it reported
 * none.
 */
export function missingPart(operation: Operation, expression: string | undefined): string | undefined {
  const { family } = operation
  if (addsRule(operation)) {
    const found = expression === undefined ? undefined : OF_EXPRESSIONS[expression]
    if (found === undefined) return undefined
    return lacks(`expression ${expression} for family ${family}`, 'module' in found ? found : found[family])
  }
  const type = operation.verb === 'add-chain' ? operation.chain.hook?.type : undefined
  const part = type === undefined ? undefined : OF_CHAINS[type]
  return part && lacks(`chains of type ${type} for family ${family}`, part)
}

function lacks(what: string, { module, option }: Part): string {
  return `this kernel has no ${what}: the module ${module} is missing (${option}); install it, or load it with modprobe ${module}`
}
