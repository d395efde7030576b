/**
 * nf_tables over netlink: tables, sets, chains and rules as values, the transaction between two such values, a client
 * that commits and lists, and a data plane made of a function from Services to tables.
 */
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
  type TableName,
} from '../kernel/nft/client.ts'
export * from '../kernel/nft/constants.ts'
export * from '../kernel/nft/datatypes.ts'
export { type DiffOptions, type DiffRulesets, diffRulesets, type RulesetDiff } from '../kernel/nft/diff.ts'
export type { Settled } from '../kernel/nft/dump.ts'
export type { IndexOfIpset, IpsetNames, NameOfIpset } from '../kernel/nft/expression-attributes.ts'
export type { OperationFailure } from '../kernel/nft/failures.ts'
export {
  type ForeignCommit,
  type ForeignCommits,
  type ForeignCommitsOptions,
  type Touched,
  watchForeignCommits,
} from '../kernel/nft/monitor.ts'
export { type DescribeOptions, describeOperation, printRuleset } from '../kernel/nft/print.ts'
export type {
  Chain,
  ChainHook,
  CompiledRule,
  Element,
  ElementData,
  ElementGroup,
  Expression,
  NftFamily,
  NftSet,
  Observed,
  ObservedChain,
  ObservedRule,
  ObservedTable,
  Rule,
  Ruleset,
  Table,
  Verdict,
} from '../kernel/nft/state.ts'
export type {
  Operation,
  OwnedElement,
  OwnedElements,
  RuleAddition,
  TableOperation,
  Transaction,
} from '../kernel/nft/transaction.ts'
export type { Detector } from '../modes/common/rules.ts'
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
export {
  addressMap,
  addressSet,
  createRulesetPlane,
  makeTable,
  type NatRules,
  natChains,
  openNftClient,
  type RulesetPlan,
  type RulesetPlaneOptions,
  type TableParts,
} from './ruleset-plane.ts'
