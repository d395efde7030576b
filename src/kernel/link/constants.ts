/** linux/rtnetlink.h and linux/if_addr.h, under the headers' own names. */

export const RTM_NEWADDR = 20
export const RTM_GETADDR = 22

export const AF_UNSPEC = 0
export const AF_INET = 2
export const AF_INET6 = 10

export const IFA_ADDRESS = 1
export const IFA_LOCAL = 2

export const RTNLGRP_IPV4_IFADDR = 5
export const RTNLGRP_IPV6_IFADDR = 9
