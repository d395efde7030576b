import type { Operation, Transaction } from '../../kernel/nft/operation.ts'
import type { NftSet, Table } from '../../kernel/nft/state.ts'
import {
  CHAIN_EARLY_POSTROUTING,
  CHAIN_LATE_OUTPUT,
  CHAIN_LATE_PREROUTING,
  CHAIN_REJECT,
} from '../common/chain-names.ts'
import { isKubeProxyTable, outlinesOf } from '../common/kube-proxy.ts'
import { parseChain } from './chains.ts'
import { SET_NAMES, type SetName } from './sets.ts'

/** Ours and kube-proxy's alike, by name and by type: kube-proxy goes on with what it finds. */
const SHARED_SETS: ReadonlySet<string> = new Set<SetName>(['cluster-ips', 'nodeport-ips'])
/** More Services than a cluster can have. */
const AMPLE_SIZE = 2 ** 20

/** What is of ours in a table that is kube-proxy's now. */
export interface Remains {
  readonly table: Pick<Table, 'family' | 'name'>
  readonly chains: readonly string[]
  readonly sets: readonly string[]
  /**
   * Empties the chains and deletes the sets, to which only these chains refer, and gives the sets that both have the
   * room that kube-proxy counts on: it makes them without a size, and fails once ours is full. Linux 6.1 and before
   * leave a size as it is.
   */
  readonly first: Transaction
  /** Deletes the chains, which on kernels before 6.2 count as in use until the first is committed. */
  readonly second: Transaction
}

/** Undefined when kube-proxy has not written over the table, or nothing of ours is left in it. Pure. */
export function remainsIn(table: Table): Remains | undefined {
  if (!isKubeProxyTable(outlinesOf(table))) return undefined
  const place = { family: table.family, table: table.name }
  const chains = [...table.chains.keys()].filter(isOurChain)
  const sets = [...SET_NAMES, FORMER_SET].filter(name => !SHARED_SETS.has(name) && table.sets.has(name))
  if (chains.length === 0 && sets.length === 0) return undefined
  const narrow = [...table.sets.values()].filter(isNarrow)
  const { family, name } = table
  return {
    table: { family, name },
    chains,
    sets,
    first: [
      ...chains
        .filter(chain => table.chains.get(chain)?.rules.length !== 0)
        .map((chain): Operation => ({ ...place, verb: 'flush-chain', chain })),
      ...sets.map((set): Operation => ({ ...place, verb: 'delete-set', set })),
      ...narrow.map((set): Operation => ({ ...place, verb: 'add-set', set: { ...set, size: AMPLE_SIZE } })),
    ],
    second: chains.map((chain): Operation => ({ ...place, verb: 'delete-chain', chain })),
  }
}

/** `reject` until 0.1. */
const CHAINS: ReadonlySet<string> = new Set([
  CHAIN_EARLY_POSTROUTING,
  CHAIN_LATE_PREROUTING,
  CHAIN_LATE_OUTPUT,
  CHAIN_REJECT,
  'reject',
])
/** Until 0.1. */
const FORMER_SET = 'endpoints'

function isOurChain(name: string): boolean {
  return CHAINS.has(name) || parseChain(name) !== undefined
}

function isNarrow({ name, size }: NftSet): boolean {
  return SHARED_SETS.has(name) && size > 0 && size < AMPLE_SIZE
}
