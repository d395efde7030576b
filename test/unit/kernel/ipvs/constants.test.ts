import { expect, it } from 'vitest'
import * as ipvs from '../../../../src/kernel/ipvs/constants.ts'
import { valuesInHeaders } from '../../../support/header-values.ts'

it('gives every constant the value it has in the kernel headers', () => {
  const ours = new Map<string, number>(Object.entries(ipvs))
  const headers = ['sys/socket.h', 'linux/ip_vs.h']
  expect([...ours]).toEqual([...valuesInHeaders({ headers, names: [...ours.keys()] })])
})
