import { NFT_MSG_DELCHAIN, NFT_MSG_DELTABLE } from '../../../src/kernel/nft/constants.ts'
import { CHAIN, TABLE } from '../../../src/kernel/nft/schema.ts'
import { AttributeWriter, ByteWriter } from '../../../src/netlink/attribute.ts'
import { writeAttributes } from '../../../src/netlink/schema.ts'
import type { Call } from './call.ts'
import { chainValues, ruleBody } from './dump.ts'
import type { FakeChain, FakeRule, FakeTable, Notice } from './objects.ts'

/** What the kernel tells listeners of objects that came or went. */

export function tableNotice(call: Call, { family, name, flags, handle }: FakeTable): Notice {
  return notice(call, { family, kind: NFT_MSG_DELTABLE }, out =>
    writeAttributes(out, TABLE, { name, flags, use: 0, handle }),
  )
}

export function chainNotice(
  call: Call,
  { table, chain }: { readonly table: FakeTable; readonly chain: FakeChain },
): Notice {
  return notice(call, { family: table.family, kind: NFT_MSG_DELCHAIN }, out =>
    writeAttributes(out, CHAIN, chainValues(table, chain)),
  )
}

export function ruleNotice(
  call: Call,
  about: {
    readonly table: FakeTable
    readonly chain: FakeChain
    readonly rule: FakeRule
    readonly kind: number
  },
): Notice {
  const { table, chain, rule, kind } = about
  const body = ruleBody({ table, chain, rule, position: undefined })
  return { kind, family: table.family, asked: call.message, body }
}

function notice(
  { message }: Call,
  { kind, family }: { readonly kind: number; readonly family: number },
  write: (out: AttributeWriter) => void,
): Notice {
  const out = new ByteWriter(256)
  write(new AttributeWriter(out))
  return { kind, family, asked: message, body: out.written() }
}
