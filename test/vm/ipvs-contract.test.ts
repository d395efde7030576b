import { execFileSync } from 'node:child_process'
import { afterEach, beforeEach, describe, expect, test } from 'vitest'
import { systemClock } from '../../src/base/clock.ts'
import { IpvsClient } from '../../src/kernel/ipvs/client.ts'
import { printSave } from '../../src/kernel/ipvs/state.ts'
import { NETLINK_GENERIC } from '../../src/netlink/constants.ts'
import { openNetlink } from '../../src/netlink/native.ts'
import type { Transport } from '../../src/netlink/transport.ts'
import { type IpvsTarget, ipvsSuite, saved } from '../contract/ipvs-suite.ts'
import { deleteServer, newDestination, newServer, real, virtual } from '../support/ipvs-objects.ts'

/** What the guest's kernel and ipvsadm say. Each test begins with an empty IPVS and leaves one. */
const opened = new Set<Transport>()

const kernel = (): IpvsTarget => ({
  open: ({ sendBytesMax, receiveBytesMax } = {}) => {
    const transport = openNetlink({
      protocol: NETLINK_GENERIC,
      ...(sendBytesMax === undefined ? {} : { sendBufferBytes: sendBytesMax }),
      ...(receiveBytesMax === undefined ? {} : { receiveBufferBytes: receiveBytesMax }),
    })
    opened.add(transport)
    return transport
  },
})

const ipvsadm = (...words: readonly string[]): string => execFileSync('ipvsadm', words, { encoding: 'utf8' })
const restore = (lines: readonly string[]): string =>
  execFileSync('ipvsadm', ['-R'], { encoding: 'utf8', input: `${lines.join('\n')}\n` })
/** In an order of its own. */
const told = (): readonly string[] =>
  ipvsadm('-S', '-n')
    .trim()
    .split('\n')
    .map(line => line.trim())
    .sort()

beforeEach(() => {
  ipvsadm('-C')
})

afterEach(async () => {
  await Promise.all([...opened].map(transport => transport.close()))
  opened.clear()
  ipvsadm('-C')
})

describe('the kernel of the guest', () => ipvsSuite(kernel))

/** Every form that a line of ipvsadm can have, but for those of what is never ours. */
const LINES: readonly string[] = [
  '-A -t 10.96.0.1:80 -s rr',
  '-a -t 10.96.0.1:80 -r 10.0.0.1:8080 -m -w 1',
  '-a -t 10.96.0.1:80 -r 10.0.0.2:8080 -m -w 0',
  '-a -t 10.96.0.1:80 -r 10.0.0.3:80 -g -w 3',
  '-a -t 10.96.0.1:80 -r 10.0.0.4:80 -i -w 65535',
  '-A -u 10.96.0.1:53 -s wlc -p 10800',
  '-A -t 10.96.0.2:443 -s mh -b mh-port',
  '-A -t 10.96.0.3:443 -s mh -b mh-fallback,mh-port',
  '-A -t 10.96.0.4:443 -s sh -b sh-fallback,sh-port',
  '-A -t 10.96.0.5:443 -s wrr -b flag-1,flag-3',
  '-A -t 10.96.0.6:443 -s rr -p 60 -M 255.255.255.0',
  '-A -u 10.96.0.7:53 -s rr -o',
  '-A -t [fd00:96::1]:80 -s rr -p 60 -M 64',
  '-a -t [fd00:96::1]:80 -r [fd00:1::1]:8080 -m -w 1',
  '-A --sctp-service [fd00:96::1]:80 -s lc',
]
/** Virtual servers of marks, which kprobe skips. */
const MARKS: readonly string[] = ['-A -f 7 -s rr', '-A -f 7 -6 -s rr']

describe('ipvsadm', () => {
  let client: IpvsClient
  beforeEach(() => {
    client = new IpvsClient({ transport: kernel().open(), clock: systemClock })
  })

  test('writes what we read, but for marks', async () => {
    restore([...LINES, ...MARKS])
    const ipip = / --tun-type ipip$/
    const addressed = told().filter(line => !MARKS.includes(line))
    expect([...(await saved(client))].sort()).toEqual(addressed.map(line => line.replace(ipip, '')))
  })

  test('reads what we write', async () => {
    const sticky = virtual('10.96.0.1', 80, { flags: 1, timeoutS: 10_800, netmask: 0xffff_0000 })
    const mh = virtual('fd00:96::1', 53, { protocol: 'UDP', scheduler: 'mh', flags: 0x10 })
    const sctp = virtual('10.96.0.2', 9, { protocol: 'SCTP' })
    const result = await client.commit([
      ...[sticky, mh, sctp].map(newServer),
      newDestination(sticky, real('10.0.0.1', 8080)),
      newDestination(mh, real('fd00:1::1', 5353, 0)),
    ])
    expect(result.failures).toEqual([])
    expect(told()).toEqual(
      [
        '-A -t 10.96.0.1:80 -s rr -p 10800 -M 255.255.0.0',
        '-a -t 10.96.0.1:80 -r 10.0.0.1:8080 -m -w 1',
        '-A -u [fd00:96::1]:53 -s mh -b mh-port',
        '-a -u [fd00:96::1]:53 -r [fd00:1::1]:5353 -m -w 0',
        '-A --sctp-service 10.96.0.2:9 -s rr',
      ].sort(),
    )
    expect([...(await saved(client))].sort()).toEqual(told())
    await client.commit([sticky, mh, sctp].map(deleteServer))
    expect(told()).toEqual([''])
  })

  test('restores what we print', async () => {
    restore(LINES)
    const before = told()
    const printed = await saved(client)
    ipvsadm('-C')
    restore(printed)
    expect(told()).toEqual(before)
    expect(printSave([])).toEqual([])
  })

  test('and we agree about timeouts', () => {
    client.setTimeouts({ tcpS: 901, tcpFinS: 121, udpS: 301 })
    expect(ipvsadm('-L', '--timeout')).toContain('901 121 301')
    ipvsadm('--set', '900', '120', '300')
    expect(client.timeouts()).toEqual({ tcpS: 900, tcpFinS: 120, udpS: 300 })
  })
})
