import { describe } from 'vitest'
import { FakeIpvs } from '../support/fake-ipvs/kernel.ts'
import { type IpvsTarget, ipvsSuite } from './ipvs-suite.ts'

const fake = (): IpvsTarget => {
  const kernel = new FakeIpvs()
  return { open: limits => kernel.open(limits) }
}

describe('IPVS in memory', () => ipvsSuite(fake))
