import { string, u32be, u64be } from '../../netlink/codec.ts'
import { attributeSet } from '../../netlink/schema.ts'
import { NFACCT_BYTES, NFACCT_NAME, NFACCT_PKTS, NFACCT_USE } from './constants.ts'

/** The attributes of a counter, as linux/netfilter/nfnetlink_acct.h describes them. */
export const ACCOUNT = attributeSet({
  name: [NFACCT_NAME, string],
  packets: [NFACCT_PKTS, u64be],
  bytes: [NFACCT_BYTES, u64be],
  /** Number of rules that use it, plus one for its existence. */
  use: [NFACCT_USE, u32be],
})
