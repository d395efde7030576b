/** linux/rtnetlink.h, linux/if_link.h and linux/if_addr.h, under the headers' own names. */

export const RTM_NEWLINK = 16
export const RTM_DELLINK = 17
export const RTM_GETLINK = 18
export const RTM_NEWADDR = 20
export const RTM_DELADDR = 21
export const RTM_GETADDR = 22

export const AF_UNSPEC = 0
export const AF_INET = 2
export const AF_INET6 = 10

export const IFA_F_SECONDARY = 0x01
export const IFA_F_NODAD = 0x02

export const RTNLGRP_IPV4_IFADDR = 5
export const RTNLGRP_IPV6_IFADDR = 9
