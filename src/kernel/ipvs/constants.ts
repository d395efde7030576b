/** linux/ip_vs.h, linux/in.h and linux/socket.h, under the headers' own names. */

export const IPVS_GENL_VERSION = 1

export const AF_INET = 2
export const AF_INET6 = 10

export const IPPROTO_TCP = 6
export const IPPROTO_UDP = 17
export const IPPROTO_SCTP = 132

export const IPVS_CMD_NEW_SERVICE = 1
export const IPVS_CMD_SET_SERVICE = 2
export const IPVS_CMD_DEL_SERVICE = 3
export const IPVS_CMD_GET_SERVICE = 4
export const IPVS_CMD_NEW_DEST = 5
export const IPVS_CMD_SET_DEST = 6
export const IPVS_CMD_DEL_DEST = 7
export const IPVS_CMD_GET_DEST = 8
export const IPVS_CMD_SET_CONFIG = 12
export const IPVS_CMD_GET_CONFIG = 13
export const IPVS_CMD_SET_INFO = 14
export const IPVS_CMD_GET_INFO = 15

/** A client keeps its real server until the timeout expires. */
export const IP_VS_SVC_F_PERSISTENT = 0x01
export const IP_VS_SVC_F_HASHED = 0x02
/** Each datagram is a connection by itself. */
export const IP_VS_SVC_F_ONEPACKET = 0x04
/** The scheduler defines the meaning of these three. */
export const IP_VS_SVC_F_SCHED1 = 0x08
export const IP_VS_SVC_F_SCHED2 = 0x10
export const IP_VS_SVC_F_SCHED3 = 0x20

export const IP_VS_CONN_F_FWD_MASK = 0x07
export const IP_VS_CONN_F_MASQ = 0x00
export const IP_VS_CONN_F_LOCALNODE = 0x01
export const IP_VS_CONN_F_TUNNEL = 0x02
export const IP_VS_CONN_F_DROUTE = 0x03
export const IP_VS_CONN_F_BYPASS = 0x04

/** The length in struct ip_vs_scheduler, including the NUL. */
export const IP_VS_SCHEDNAME_MAXLEN = 16
