/** linux/netfilter/nfnetlink_acct.h and nfnetlink.h, under the headers' own names. */

export const NFNL_SUBSYS_ACCT = 7

export const NFNL_MSG_ACCT_NEW = 0
export const NFNL_MSG_ACCT_GET = 1
export const NFNL_MSG_ACCT_GET_CTRZERO = 2
export const NFNL_MSG_ACCT_DEL = 3

export const NFACCT_NAME = 1
export const NFACCT_PKTS = 2
export const NFACCT_BYTES = 3
export const NFACCT_USE = 4

/** Includes the NUL. */
export const NFACCT_NAME_MAX = 32
