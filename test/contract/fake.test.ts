import { describe } from 'vitest'
import { FakeKernel } from '../support/fake-kernel/kernel.ts'
import { batchSuite } from './batch-suite.ts'
import { clientSuite } from './client-suite.ts'
import { ipsetSuite } from './ipset-suite.ts'
import { sharedSuite } from './shared-suite.ts'
import { socketSuite } from './socket-suite.ts'
import type { TargetFactory } from './target.ts'

const fake: TargetFactory = () => {
  const kernel = new FakeKernel()
  const { ipsets } = kernel.space
  return {
    version: undefined,
    open: limits => kernel.open(limits),
    createIpset: name => ipsets.set(ipsets.size, name),
    ipsets: () => ({
      nameOf: index => ipsets.get(index),
      indexOf: name => [...ipsets].find(([, each]) => each === name)?.[0],
    }),
  }
}

describe('the kernel in memory', () => {
  describe('answers batches', () => batchSuite(fake))
  describe('keeps its sockets', () => socketSuite(fake))
  describe('serves the client', () => clientSuite(fake))
  describe('matches ipsets', () => ipsetSuite(fake))
  describe('shares tables', () => sharedSuite(fake))
})
