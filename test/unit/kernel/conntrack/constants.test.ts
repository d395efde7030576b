import { expect, it } from 'vitest'
import * as conntrack from '../../../../src/kernel/conntrack/constants.ts'
import { valuesInHeaders } from '../../../support/header-values.ts'

it('gives every constant the value it has in the kernel headers', () => {
  const ours = new Map<string, number>(Object.entries(conntrack))
  const headers = [
    'linux/netfilter.h',
    'linux/netfilter/nfnetlink.h',
    'linux/netfilter/nfnetlink_conntrack.h',
    'linux/netfilter/nf_conntrack_common.h',
  ]
  expect([...ours]).toEqual([...valuesInHeaders({ headers, names: [...ours.keys()] })])
})
