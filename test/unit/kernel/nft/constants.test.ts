import { expect, it } from 'vitest'
import * as nft from '../../../../src/kernel/nft/constants.ts'
import * as netlink from '../../../../src/netlink/constants.ts'
import { valuesInHeaders } from '../../../support/header-values.ts'

/** Younger than the oldest headers we build on (Linux 6.1): not checked below the version that brought each. */
const YOUNGER: ReadonlyMap<string, string> = new Map([['NFT_TABLE_F_PERSIST', '6, 9, 0']])

const HEADERS = [
  'linux/netlink.h',
  'linux/netfilter.h',
  'linux/netfilter_ipv4.h',
  'linux/netfilter_ipv6.h',
  'linux/netfilter/nfnetlink.h',
  'linux/netfilter/nf_tables.h',
  'linux/netfilter/nf_tables_compat.h',
  'linux/netfilter/ipset/ip_set.h',
  'linux/netfilter/nf_nat.h',
  'linux/netfilter/nf_conntrack_common.h',
  'linux/icmp.h',
  'linux/icmpv6.h',
  'linux/rtnetlink.h',
]

it('gives every constant the value it has in the kernel headers', () => {
  const ours = new Map<string, number>(Object.entries({ ...netlink, ...nft }))
  expect(ours.size).toBeGreaterThan(150)
  const theirs = valuesInHeaders({ headers: HEADERS, names: [...ours.keys()], younger: YOUNGER })
  for (const name of YOUNGER.keys()) if (!theirs.has(name)) ours.delete(name)
  expect([...ours]).toEqual([...theirs])
})
