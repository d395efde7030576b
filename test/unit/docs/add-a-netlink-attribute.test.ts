import { expect, test } from 'vitest'
import { AttributeWriter, ByteWriter, viewOf } from '../../../src/netlink/attribute.ts'
import { u32be, u64be } from '../../../src/netlink/codecs.ts'
import { attributeSet, readAttributes, writeAttributes } from '../../../src/netlink/schema.ts'

const NFTA_QUOTA_BYTES = 1
const NFTA_QUOTA_FLAGS = 2
const NFTA_QUOTA_CONSUMED = 4

/** In the order in which the kernel lists them. */
const QUOTA = attributeSet({
  bytes: [NFTA_QUOTA_BYTES, u64be],
  consumed: [NFTA_QUOTA_CONSUMED, u64be],
  flags: [NFTA_QUOTA_FLAGS, u32be],
})

/** `quota over 4096 bytes`, as nft 1.0.6 sends it. */
const OVER_4096 = Buffer.from(
  '0c000100' + '0000000000001000' + '0c000400' + '0000000000000000' + '08000200' + '00000001',
  'hex',
)
const VALUES = { bytes: 4096n, consumed: 0n, flags: 1 }

test('the table of quota writes what nft writes, and reads it', () => {
  const out = new ByteWriter(16)
  writeAttributes(new AttributeWriter(out), QUOTA, VALUES)
  expect(Buffer.from(out.written())).toEqual(OVER_4096)
  const span = { start: 0, end: OVER_4096.length }
  expect(readAttributes(viewOf(OVER_4096), QUOTA, span)).toEqual(VALUES)
})
