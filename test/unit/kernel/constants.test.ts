import { expect, it } from 'vitest'
import * as conntrack from '../../../src/kernel/conntrack/flow.ts'
import * as ipset from '../../../src/kernel/ipset/state.ts'
import { COMMON, OF_BITMAPS, OF_HASHES } from '../../../src/kernel/ipset/state.ts'
import * as ipvs from '../../../src/kernel/ipvs/state.ts'
import * as link from '../../../src/kernel/link/links.ts'
import * as nft from '../../../src/kernel/nft/constants.ts'
import * as socket from '../../../src/kernel/socket/listeners.ts'
import * as netlink from '../../../src/netlink/constants.ts'
import * as genetlink from '../../../src/netlink/genetlink.ts'
import { valuesInHeaders } from '../../support/header-values.ts'

/** Younger than the oldest headers we build on (Linux 6.1): not checked below the version that brought each. */
const YOUNGER: ReadonlyMap<string, string> = new Map([['NFT_TABLE_F_PERSIST', '6, 9, 0']])

/** Values of other headers, or of none. */
const APART: readonly string[] = [
  'TCPF_LISTEN',
  'TCPF_CLOSE',
  'INET_DIAG_NOCOOKIE',
  'IFADDRMSG_LENGTH',
  'IFINFOMSG_LENGTH',
  'CHANGE_BYTES_MAX',
  'BITMAP_ELEMENTS_MAX',
  'SET_NAME_BYTES_MAX',
]

const IPSET_ERRORS = Object.fromEntries(
  [...COMMON, ...OF_HASHES, ...OF_BITMAPS].map(([errno, { code }]) => [code, errno]),
)

it.each([
  [
    'nftables',
    100,
    { ...netlink, ...nft },
    'sys/socket.h linux/netlink.h linux/netfilter.h linux/netfilter_ipv4.h linux/netfilter_ipv6.h linux/netfilter/nfnetlink.h',
    'linux/netfilter/nf_tables.h linux/netfilter/nf_tables_compat.h linux/netfilter/ipset/ip_set.h',
    'linux/netfilter/nf_nat.h linux/netfilter/nf_conntrack_common.h linux/icmp.h linux/icmpv6.h linux/rtnetlink.h',
  ],
  [
    'ipset',
    30,
    { ...ipset, ...IPSET_ERRORS },
    'linux/netfilter.h linux/netfilter/nfnetlink.h linux/netfilter/ipset/ip_set.h',
    'linux/netfilter/ipset/ip_set_hash.h linux/netfilter/ipset/ip_set_bitmap.h',
  ],
  [
    'conntrack',
    10,
    conntrack,
    'linux/netfilter.h linux/netfilter/nfnetlink.h linux/netfilter/nfnetlink_conntrack.h',
    'linux/netfilter/nf_conntrack_common.h',
  ],
  ['IPVS', 10, ipvs, 'sys/socket.h linux/ip_vs.h'],
  ['interfaces', 5, link, 'sys/socket.h linux/rtnetlink.h linux/if_link.h linux/if_addr.h'],
  ['sockets', 1, socket, 'sys/socket.h netinet/in.h linux/sock_diag.h linux/inet_diag.h'],
  ['generic netlink', 3, genetlink, 'linux/genetlink.h'],
] as const)(
  'gives every constant of %s, more than %i, the value it has in the kernel headers',
  (_, least, module, ...headers) => {
    const isChecked = (entry: [string, unknown]): entry is [string, number] =>
      typeof entry[1] === 'number' && !APART.includes(entry[0])
    const ours = new Map(Object.entries<unknown>(module).filter(isChecked))
    expect(ours.size).toBeGreaterThan(least)
    const theirs = valuesInHeaders({
      headers: headers.join(' ').split(' '),
      names: [...ours.keys()],
      younger: YOUNGER,
    })
    for (const name of YOUNGER.keys()) if (!theirs.has(name)) ours.delete(name)
    expect([...ours]).toEqual([...theirs])
  },
)

it('has states of sockets as bits of those in netinet/tcp.h, and no cookie without its sign', () => {
  const states = valuesInHeaders({ headers: ['netinet/tcp.h'], names: ['TCP_LISTEN', 'TCP_CLOSE'] })
  const { TCPF_LISTEN, TCPF_CLOSE, INET_DIAG_NOCOOKIE } = socket
  expect([TCPF_LISTEN, TCPF_CLOSE]).toEqual([...states].map(([, state]) => 1 << state))
  expect(INET_DIAG_NOCOOKIE).toBe(~0 >>> 0)
})
