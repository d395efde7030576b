/** linux/netfilter/nfnetlink_log.h, under its own names. */

export const NFULNL_MSG_PACKET = 0
export const NFULNL_MSG_CONFIG = 1

export const NFULA_IFINDEX_INDEV = 4
export const NFULA_PAYLOAD = 9
export const NFULA_PREFIX = 10
export const NFULA_SEQ = 12

export const NFULA_CFG_CMD = 1
export const NFULA_CFG_MODE = 2
export const NFULA_CFG_QTHRESH = 5
export const NFULA_CFG_FLAGS = 6
export const NFULNL_CFG_CMD_BIND = 1
export const NFULNL_COPY_PACKET = 2
export const NFULNL_CFG_F_SEQ = 1
