/**
 * nf_tables over netlink: tables, sets, chains and rules as values, the transaction between two such values, a client
 * that commits and lists, and a data plane made of a function from Services to tables.
 */
import { atOnce, type Clock, stepsOver, systemClock } from '../base/clock.ts'
import { PersistentMap } from '../base/collections.ts'
import { createNftClient, type NftClient } from '../kernel/nft/client.ts'
import {
  NF_INET_LOCAL_OUT,
  NF_INET_POST_ROUTING,
  NF_INET_PRE_ROUTING,
  NF_IP_PRI_NAT_DST,
  NF_IP_PRI_NAT_SRC,
  NFT_SET_MAP,
} from '../kernel/nft/constants.ts'
import { diffRulesets } from '../kernel/nft/diff.ts'
import type { DiffOptions } from '../kernel/nft/diff-elements.ts'
import type { Touched } from '../kernel/nft/monitor.ts'
import type {
  Chain,
  Element,
  NftFamily,
  NftSet,
  Rule,
  Ruleset,
  Table,
  TableName,
} from '../kernel/nft/state.ts'
import type { Transaction } from '../kernel/nft/transaction.ts'
import type { FrontendTable } from '../model/frontend.ts'
import { type FamilyLayout, LAYOUTS, NFT_FAMILIES, plainSet } from '../modes/common/tables.ts'
import { commitWith, transactionPlan } from '../modes/common/transaction-plan.ts'
import { deleteTables, watchesOf } from '../modes/common/writers.ts'
import { NETLINK_NETFILTER } from '../netlink/constants.ts'
import { openNetlink } from '../netlink/native.ts'
import type { Transport } from '../netlink/transport.ts'
import { type Dataplane, generationOf, type Plan } from '../reconcile/dataplane.ts'

export type { Octets } from '../base/octets.ts'
export {
  type ChainListing,
  type ChainName,
  type ChainPlace,
  type CommitResult,
  type CountedRule,
  createNftClient,
  type Listing,
  type NftClient,
  type NftClientOptions,
  type ReadOptions,
  type TableName,
} from '../kernel/nft/client.ts'
export * from '../kernel/nft/constants.ts'
export * from '../kernel/nft/datatypes.ts'
export { diffRulesets, type RulesetDiff } from '../kernel/nft/diff.ts'
export type { DiffOptions } from '../kernel/nft/diff-elements.ts'
export type { Settled } from '../kernel/nft/dump.ts'
export type { OperationFailure } from '../kernel/nft/failures.ts'
export type { IndexOfIpset, IpsetNames, NameOfIpset } from '../kernel/nft/ipset-match.ts'
export {
  type ForeignCommit,
  type ForeignCommits,
  type ForeignCommitsOptions,
  type Touched,
  watchForeignCommits,
} from '../kernel/nft/monitor.ts'
export { type DescribeOptions, describeOperation, printRuleset } from '../kernel/nft/print.ts'
export type * from '../kernel/nft/state.ts'
export type {
  Operation,
  OwnedElement,
  OwnedElements,
  RuleAddition,
  TableOperation,
  Transaction,
} from '../kernel/nft/transaction.ts'
export type { Detector } from '../modes/common/detector.ts'
export {
  askMasquerade,
  compare,
  destinationAddress,
  dropCounted,
  type Expressions,
  fromThisNode,
  goTo,
  jumpTo,
  mapped,
  maskBytes,
  maskNumber,
  masquerade,
  masqueradeMarked,
  matches,
  portOfPacket,
  prefixMask,
  type RuleContext,
  readMark,
  rule,
  sourceAddress,
  translate,
  translateAddress,
  WORK,
  writeMark,
} from '../modes/common/rules.ts'
export {
  type FamilyLayout,
  LAYOUTS,
  NFT_FAMILIES,
  plainSet,
  portData,
  portKey,
} from '../modes/common/tables.ts'

export interface RulesetPlaneOptions {
  /** The name of the plane and of its tables. */
  readonly name: string
  readonly client: NftClient
  /**
   * Families of the tables of that name, ip and ip6 by default. The plane owns these tables with all their contents.
   */
  readonly families?: readonly NftFamily[]
  /** Renders the whole table of one family. Pure: equal Services give equal tables. */
  readonly render: (layout: FamilyLayout, frontends: FrontendTable) => Table
  /**
   * Names the processes that change the tables, if drift recurs. It opens a further socket; `own` is the port id of the
   * commits of `client`. Without it, drift is repaired, but no process is named.
   */
  readonly writers?: { readonly openTransport: () => Transport; readonly own: number }
}

/** One transaction of nf_tables, and the kernel state after it. */
export interface RulesetPlan extends Plan<Ruleset> {
  readonly transaction: Transaction
}

const NOTHING: Ruleset = { tables: [] }
const NONE_LATE: DiffOptions = { lateSets: new Set() }

/**
 * Makes a data plane of one function, which renders all tables. Each diff is one transaction, and listing finds drift.
 * The quarantine of a single Service needs its elements in a group of its name (Table.elements). Rendering and diffing
 * walk all Services: for tens of thousands of Services implement Dataplane.
 */
export function createRulesetPlane(options: RulesetPlaneOptions): Dataplane<Ruleset, RulesetPlan> {
  const { name, client, families = NFT_FAMILIES, writers } = options
  const tables: readonly TableName[] = families.map(family => ({ family, name }))
  const touchesUs = ({ family, table }: Touched) =>
    tables.some(ours => ours.family === family && ours.name === table)
  const { watchGeneration, watchWriters } = watchesOf(writers, touchesUs)
  return {
    name,
    empty: NOTHING,
    render(frontends, { without }) {
      const served = leavingOut(frontends, without)
      const tables: Table[] = []
      return stepsOver(families, {
        each: family => tables.push(options.render(LAYOUTS[family], served)),
        result: () => ({ tables }),
      })
    },
    diff: (from, to) => atOnce(() => planOf(from, to)),
    generation: () => generationOf(client.generation()),
    watchGeneration,
    watchWriters,
    async observe() {
      const { ruleset, generation, unsettled } = await client.list(tables)
      return { state: ruleset, generation: generationOf(generation), unsettled }
    },
    commit: commitWith(client),
    cleanup: async () => void (await deleteTables(client, tables)),
  }
}

function leavingOut(frontends: FrontendTable, without: ReadonlySet<string>): FrontendTable {
  if (without.size === 0) return frontends
  return { ...frontends, services: frontends.services.with([...without].map(key => [key, undefined])) }
}

function planOf(from: Ruleset, to: Ruleset): RulesetPlan {
  const { transaction, after, complete } = diffRulesets(from, to, NONE_LATE)
  return transactionPlan({ transaction, complete, after, ruleset: after })
}

export interface TableParts {
  readonly family: NftFamily
  readonly name: string
  readonly comment?: string
  readonly chains: readonly Chain[]
  readonly sets?: readonly NftSet[]
  /** The elements by Service, so that the kernel rejects only those of one Service. */
  readonly elements?: Iterable<readonly [service: string, elements: readonly Element[]]>
}

/** Makes a table of its parts. */
export function makeTable({ family, name, comment, chains, sets = [], elements = [] }: TableParts): Table {
  return {
    family,
    name,
    flags: 0,
    comment,
    chains: new Map(chains.map(chain => [chain.name, chain])),
    sets: new Map(sets.map(set => [set.name, set])),
    elements: PersistentMap.from(elements),
  }
}

export interface NatRules {
  /** Rules of both hooks: for incoming packets, and for packets of this node. */
  readonly translate: readonly Rule[]
  readonly postrouting: readonly Rule[]
}

/**
 * Makes base chains of type nat, named after their hooks prerouting, output and postrouting, at kube-proxy's
 * priorities.
 */
export function natChains({ translate, postrouting }: NatRules): readonly Chain[] {
  return [
    natChain('prerouting', NF_INET_PRE_ROUTING, translate),
    natChain('output', NF_INET_LOCAL_OUT, translate),
    natChain('postrouting', NF_INET_POST_ROUTING, postrouting),
  ]
}

function natChain(name: string, hooknum: number, rules: readonly Rule[]): Chain {
  const priority = hooknum === NF_INET_POST_ROUTING ? NF_IP_PRI_NAT_SRC : NF_IP_PRI_NAT_DST
  return { name, hook: { type: 'nat', hooknum, priority }, rules }
}

/** Makes a set of addresses of the family, or of several fields in sequence. Its size is that of its elements. */
export function addressSet({ addressType, addressLength }: FamilyLayout, name: string, fields = 1): NftSet {
  const types = Array.from({ length: fields }, () => addressType)
  return plainSet(name, 0, { types, length: fields * addressLength })
}

/** Makes a map from an address to another one. */
export function addressMap(layout: FamilyLayout, name: string): NftSet {
  const { addressType: dataType, addressLength: dataLength } = layout
  return { ...addressSet(layout, name), flags: NFT_SET_MAP, dataType, dataLength }
}

/**
 * Opens a client of this network namespace's nf_tables. Throws if the addon is missing or the kernel denies the socket.
 */
export function openNftClient(clock: Clock = systemClock): NftClient {
  return createNftClient({ transport: openNetlink({ protocol: NETLINK_NETFILTER }), clock })
}
