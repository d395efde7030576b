import type { IpsetNames } from '../../src/kernel/nft/ipset-match.ts'
import type { Transport } from '../../src/netlink/transport.ts'
import { attribute, datagrams, encoded, messagesIn, REQUEST, str } from './wire.ts'

/** linux/netfilter/ipset/ip_set.h. */
const SUBSYSTEM = 6
const GET_BYNAME = 14
const GET_BYINDEX = 15
const PROTOCOL = attribute(1, Buffer.from([7]))
const ATTR_SETNAME = 2
const ATTR_INDEX = 11

/** Names and numbers of ipsets, asked for byte by byte. */
export function ipsetNames(transport: Transport): IpsetNames {
  const ask = (command: number, what: Buffer, wanted: number): Buffer | undefined => {
    const type = (SUBSYSTEM << 8) | command
    const body = Buffer.concat([PROTOCOL, what])
    transport.sendSync(encoded({ type, flags: REQUEST, family: 2, body }, 1))
    for (const datagram of datagrams(transport)) {
      if (typeof datagram === 'string') throw new Error(datagram)
      for (const message of messagesIn(datagram)) {
        if (message.readUInt16LE(4) !== 2) return valueIn(message, wanted)
      }
    }
    return undefined
  }
  return {
    indexOf: name => ask(GET_BYNAME, str(ATTR_SETNAME, name), ATTR_INDEX)?.readUInt16BE(),
    nameOf(index) {
      const value = Buffer.from([index >> 8, index & 255])
      const name = ask(GET_BYINDEX, attribute(ATTR_INDEX, value), ATTR_SETNAME)
      return name?.toString('latin1').replace(/\0.*$/, '')
    },
  }
}

function valueIn(message: Buffer, wanted: number): Buffer | undefined {
  for (let at = 20; at + 4 <= message.length; at += (message.readUInt16LE(at) + 3) & ~3) {
    const end = at + message.readUInt16LE(at)
    if ((message.readUInt16LE(at + 2) & 0x3fff) === wanted) return message.subarray(at + 4, end)
  }
  return undefined
}
