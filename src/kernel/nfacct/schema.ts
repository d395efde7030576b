import { string, u32be, u64be } from '../../netlink/codec.ts'
import { attributeSet } from '../../netlink/schema.ts'
import { NFACCT_BYTES, NFACCT_NAME, NFACCT_PKTS, NFACCT_USE } from './constants.ts'

/** A counter, as linux/netfilter/nfnetlink_acct.h describes it. */
export const ACCOUNT = attributeSet({
  name: [NFACCT_NAME, string],
  packets: [NFACCT_PKTS, u64be],
  bytes: [NFACCT_BYTES, u64be],
  /** Rules that count with it, and one for its being there. */
  use: [NFACCT_USE, u32be],
})
