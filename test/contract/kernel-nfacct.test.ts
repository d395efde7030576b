import { execFileSync } from 'node:child_process'
import { createSocket } from 'node:dgram'
import { afterEach, beforeEach, describe, expect, test } from 'vitest'
import { systemClock } from '../../src/base/clock.ts'
import {
  type AccountCounts,
  decodeAccount,
  encodeAccount,
  NFNL_MSG_ACCT_DEL,
  NFNL_MSG_ACCT_GET,
  NFNL_MSG_ACCT_GET_CTRZERO,
  NFNL_MSG_ACCT_NEW,
  NfacctClient,
} from '../../src/kernel/nfacct/client.ts'
import { Connection } from '../../src/netlink/connection.ts'
import { NETLINK_NETFILTER, NLM_F_ACK, NLM_F_EXCL } from '../../src/netlink/constants.ts'
import { openNetlink } from '../../src/netlink/native.ts'
import { freshNetns } from '../support/lab/netns.ts'

const PAYLOAD = Buffer.alloc(22)
/** With the headers of UDP and IPv4. */
const PACKET_BYTES = BigInt(PAYLOAD.length + 8 + 20)

/** A network namespace that begins without counters, and rules that count with them. */
function kernel() {
  freshNetns()
  execFileSync('ip', ['link', 'set', 'lo', 'up'])
  const rule = (verb: string, name: string): void =>
    void execFileSync('iptables-nft', [verb, 'OUTPUT', '-p', 'udp', '-m', 'nfacct', '--nfacct-name', name])
  return {
    open: () => openNetlink({ protocol: NETLINK_NETFILTER }),
    use: (name: string) => rule('-A', name),
    unuse: (name: string) => rule('-D', name),
    /** Lets such a rule count two packets. */
    async count(): Promise<AccountCounts> {
      const socket = createSocket('udp4')
      socket.on('error', () => undefined)
      for (let packet = 0; packet < 2; packet++)
        await new Promise<void>(resolve => socket.send(PAYLOAD, 9, '127.0.0.1', () => resolve()))
      await new Promise<void>(resolve => socket.close(() => resolve()))
      return { packets: 2n, bytes: 2n * PACKET_BYTES }
    },
  }
}

const NAME = 'ct_state_invalid_dropped_pkts'
const NOTHING = { packets: 0n, bytes: 0n }

describe('counters of the kernel', () => {
  let target: ReturnType<typeof kernel>
  let client: NfacctClient
  let raw: Connection
  beforeEach(() => {
    target = kernel()
    client = new NfacctClient({ transport: target.open(), clock: systemClock })
    raw = new Connection({ transport: target.open(), clock: systemClock })
  })
  afterEach(async () => {
    await Promise.all([client.close(), raw.close()])
  })

  test('a counter is made once, read, and deleted', () => {
    expect(client.read(NAME)).toBeUndefined()
    expect(client.ensure(NAME)).toBe(true)
    expect(client.read(NAME)).toEqual(NOTHING)
    expect(client.ensure(NAME)).toBe(true)
    expect(client.delete(NAME)).toBe(true)
    expect(client.read(NAME)).toBeUndefined()
    expect(client.delete(NAME)).toBe(true)
  })

  test('one that is there keeps its counts, and is zeroed by asking for that', async () => {
    client.ensure(NAME)
    target.use(NAME)
    const counted = await target.count()
    expect(counted.packets).toBeGreaterThan(0n)
    client.ensure(NAME)
    expect(client.read(NAME)).toEqual(counted)
    expect(ask(raw, NFNL_MSG_ACCT_GET_CTRZERO, 0)).toEqual([{ name: NAME, ...counted }])
    expect(client.read(NAME)).toEqual(NOTHING)
  })

  test('one that a rule counts with stays', () => {
    client.ensure(NAME)
    target.use(NAME)
    expect(client.delete(NAME)).toBe(false)
    expect(client.read(NAME)).toEqual(NOTHING)
    target.unuse(NAME)
    expect(client.delete(NAME)).toBe(true)
  })

  test('two of them are two', () => {
    client.ensure(NAME)
    client.ensure('localhost_nps_accepted_pkts')
    expect(client.delete(NAME)).toBe(true)
    expect(client.read('localhost_nps_accepted_pkts')).toEqual(NOTHING)
  })

  test('refusals', () => {
    expect(() => ask(raw, NFNL_MSG_ACCT_GET, 0)).toThrow('ENOENT')
    expect(() => ask(raw, NFNL_MSG_ACCT_GET_CTRZERO, 0)).toThrow('ENOENT')
    expect(() => ask(raw, NFNL_MSG_ACCT_DEL, NLM_F_ACK)).toThrow('ENOENT')
    client.ensure(NAME)
    expect(() => ask(raw, NFNL_MSG_ACCT_NEW, NLM_F_ACK)).toThrow('EBUSY')
    expect(() => ask(raw, NFNL_MSG_ACCT_NEW, NLM_F_ACK | NLM_F_EXCL)).toThrow('EEXIST')
  })

  test('names are of 1 to 31 bytes', () => {
    expect(client.ensure('n'.repeat(31))).toBe(true)
    for (const name of ['', 'n'.repeat(32)]) {
      expect(() => client.ensure(name)).toThrow('EMSGSIZE')
      expect(() => client.read(name)).toThrow('EMSGSIZE')
      expect(() => client.delete(name)).toThrow('EMSGSIZE')
    }
  })
})

function ask(connection: Connection, message: number, flags: number): readonly AccountCounts[] {
  const found: AccountCounts[] = []
  connection.roundTrip({
    operation: 'ask',
    object: NAME,
    build: sequence => encodeAccount({ message, flags, name: NAME }, sequence),
    onMessage: (view, one) => found.push(decodeAccount(view, one)),
  })
  return found
}
