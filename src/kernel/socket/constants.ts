/** linux/sock_diag.h, linux/inet_diag.h and linux/tcp.h, under the headers' own names. */

export const SOCK_DIAG_BY_FAMILY = 20
export const INET_DIAG_SKV6ONLY = 11
export const INET_DIAG_NOCOOKIE = 0xffff_ffff

export const AF_INET = 2
export const AF_INET6 = 10
export const IPPROTO_TCP = 6
export const IPPROTO_UDP = 17

/** Bits by state: TCP_LISTEN, and TCP_CLOSE, which sockets of UDP have while they are not connected. */
export const TCPF_LISTEN = 1 << 10
export const TCPF_CLOSE = 1 << 7
