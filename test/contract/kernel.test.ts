import { execFileSync } from 'node:child_process'
import { afterEach, describe } from 'vitest'
import { NETLINK_NETFILTER } from '../../src/netlink/constants.ts'
import { openNetlink } from '../../src/netlink/native.ts'
import type { Transport } from '../../src/netlink/transport.ts'
import { freshNetns } from '../support/lab/netns.ts'
import { batchSuite } from './batch-suite.ts'
import { clientSuite } from './client-suite.ts'
import { ipsetSuite } from './ipset-suite.ts'
import { ipsetNames } from './ipsets.ts'
import { sharedSuite } from './shared-suite.ts'
import { socketSuite } from './socket-suite.ts'
import { type TargetFactory, versionOfThisKernel } from './target.ts'

// Without a namespace of its own, without the addon or without permission this fails at once, in words of each.
const real: TargetFactory = () => {
  freshNetns()
  return {
    version: versionOfThisKernel(),
    open: ({ sendBytesMax, receiveBytesMax } = {}) =>
      track(
        openNetlink({
          protocol: NETLINK_NETFILTER,
          ...(sendBytesMax === undefined ? {} : { sendBufferBytes: sendBytesMax }),
          ...(receiveBytesMax === undefined ? {} : { receiveBufferBytes: receiveBytesMax }),
        }),
      ),
    createIpset: (name, family) => {
      const inet = family === 'ip' ? 'inet' : 'inet6'
      execFileSync('ipset', ['create', name, 'hash:ip,port', 'family', inet])
    },
    ipsets: () => ipsetNames(track(openNetlink({ protocol: NETLINK_NETFILTER }))),
  }
}

const opened = new Set<Transport>()

function track(transport: Transport): Transport {
  opened.add(transport)
  return transport
}

afterEach(async () => {
  await Promise.all([...opened].map(transport => transport.close()))
  opened.clear()
})

describe('the kernel of this machine', () => {
  describe('answers batches', () => batchSuite(real))
  describe('keeps its sockets', () => socketSuite(real))
  describe('serves the client', () => clientSuite(real))
  describe('matches ipsets', () => ipsetSuite(real))
  describe('shares tables', () => sharedSuite(real))
})
