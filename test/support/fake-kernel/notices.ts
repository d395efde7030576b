import { NFT_MSG_DELCHAIN, NFT_MSG_DELTABLE } from '../../../src/kernel/nft/constants.ts'
import { CHAIN, TABLE } from '../../../src/kernel/nft/schema.ts'
import { writeAttributes } from '../../../src/netlink/schema.ts'
import type { Call } from './call.ts'
import { chainValues, type RulePlace, writeRule } from './dump.ts'
import type { FakeChain, FakeTable, Notice } from './objects.ts'

/** What the kernel tells listeners of objects that came or went. */

export function tableNotice({ message }: Call, { family, name, flags, handle }: FakeTable): Notice {
  const values = { name, flags, use: 0, handle }
  return { kind: NFT_MSG_DELTABLE, family, asked: message, write: out => writeAttributes(out, TABLE, values) }
}

export function chainNotice(
  { message }: Call,
  { table, chain }: { readonly table: FakeTable; readonly chain: FakeChain },
): Notice {
  const { family } = table
  const values = chainValues(table, chain)
  return { kind: NFT_MSG_DELCHAIN, family, asked: message, write: out => writeAttributes(out, CHAIN, values) }
}

export function ruleNotice(
  { message }: Call,
  { kind, ...about }: RulePlace & { readonly kind: number },
): Notice {
  return { kind, family: about.table.family, asked: message, write: out => writeRule(out, about) }
}
