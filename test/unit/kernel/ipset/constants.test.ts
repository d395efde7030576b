import { expect, it } from 'vitest'
import * as ipset from '../../../../src/kernel/ipset/constants.ts'
import { valuesInHeaders } from '../../../support/header-values.ts'

const HEADERS = [
  'linux/netfilter.h',
  'linux/netfilter/nfnetlink.h',
  'linux/netfilter/ipset/ip_set.h',
  'linux/netfilter/ipset/ip_set_hash.h',
  'linux/netfilter/ipset/ip_set_bitmap.h',
]
/** Headers of Linux 6.1 lack it. */
const YOUNGER: ReadonlyMap<string, string> = new Map([['IPSET_ATTR_BITMASK', '6, 2, 0']])

it('gives every constant the value it has in the kernel headers', () => {
  const ours = new Map<string, number>(Object.entries(ipset))
  expect(ours.size).toBeGreaterThan(60)
  const theirs = valuesInHeaders({ headers: HEADERS, names: [...ours.keys()], younger: YOUNGER })
  for (const name of YOUNGER.keys()) if (!theirs.has(name)) ours.delete(name)
  expect([...ours]).toEqual([...theirs])
})
