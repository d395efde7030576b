import { execFileSync } from 'node:child_process'
import { createSocket } from 'node:dgram'
import { describe } from 'vitest'
import { NETLINK_NETFILTER } from '../../src/netlink/constants.ts'
import { openNetlink } from '../../src/netlink/native.ts'
import { freshNetns } from '../support/lab/netns.ts'
import { type NfacctTarget, nfacctSuite } from './nfacct-suite.ts'

const PAYLOAD = Buffer.alloc(22)
/** With the headers of UDP and IPv4. */
const PACKET_BYTES = BigInt(PAYLOAD.length + 8 + 20)

function real(): NfacctTarget {
  freshNetns()
  execFileSync('ip', ['link', 'set', 'lo', 'up'])
  const rule = (verb: string, name: string): void =>
    void execFileSync('iptables-nft', [verb, 'OUTPUT', '-p', 'udp', '-m', 'nfacct', '--nfacct-name', name])
  return {
    open: () => openNetlink({ protocol: NETLINK_NETFILTER }),
    use: name => rule('-A', name),
    unuse: name => rule('-D', name),
    async count() {
      const socket = createSocket('udp4')
      socket.on('error', () => undefined)
      for (let packet = 0; packet < 2; packet++)
        await new Promise<void>(resolve => socket.send(PAYLOAD, 9, '127.0.0.1', () => resolve()))
      await new Promise<void>(resolve => socket.close(() => resolve()))
      return { packets: 2n, bytes: 2n * PACKET_BYTES }
    },
  }
}

describe('counters of the kernel', () => nfacctSuite(real))
