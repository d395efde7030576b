import { expect, it } from 'vitest'
import * as link from '../../../../src/kernel/link/constants.ts'
import { valuesInHeaders } from '../../../support/header-values.ts'

it('gives every constant the value it has in the kernel headers', () => {
  const ours = new Map<string, number>(Object.entries(link))
  const headers = ['sys/socket.h', 'linux/rtnetlink.h', 'linux/if_link.h', 'linux/if_addr.h']
  expect([...ours]).toEqual([...valuesInHeaders({ headers, names: [...ours.keys()] })])
})
