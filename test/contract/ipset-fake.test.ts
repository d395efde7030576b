import { describe } from 'vitest'
import { FakeIpsetKernel } from '../support/fake-ipset/kernel.ts'
import { type IpsetTargetFactory, ipsetClientSuite } from './ipset-client-suite.ts'
import { ipsetMessagesSuite } from './ipset-messages-suite.ts'

const fake: IpsetTargetFactory = () => {
  const kernel = new FakeIpsetKernel()
  return {
    version: undefined,
    open: () => kernel.open(),
    refer: name => kernel.refer(name),
    makeForeign: name => kernel.put({ name, type: 'list:set', family: 0 }),
  }
}

describe('ipsets in memory', () => {
  describe('answer messages', () => ipsetMessagesSuite(fake))
  describe('serve the client', () => ipsetClientSuite(fake))
})
