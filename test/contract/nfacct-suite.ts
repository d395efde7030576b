import { afterEach, beforeEach, expect, test } from 'vitest'
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
import { NLM_F_ACK, NLM_F_EXCL } from '../../src/netlink/constants.ts'
import type { Transport } from '../../src/netlink/transport.ts'

/** Counters of a network namespace, real or not, that begins without any. */
export interface NfacctTarget {
  open(): Transport
  /** As a rule with `-m nfacct --nfacct-name NAME`, and its removal. */
  use(name: string): void
  unuse(name: string): void
  /** Lets such a rule count two packets of a hundred bytes together. */
  count(name: string): Promise<AccountCounts>
}

const NAME = 'ct_state_invalid_dropped_pkts'
const NOTHING = { packets: 0n, bytes: 0n }

export function nfacctSuite(factory: () => NfacctTarget): void {
  let target: NfacctTarget
  let client: NfacctClient
  let raw: Connection
  beforeEach(() => {
    target = factory()
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
    const counted = await target.count(NAME)
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

  refusals(() => ({ client, raw }))
}

function refusals(rig: () => { readonly client: NfacctClient; readonly raw: Connection }): void {
  const client = () => rig().client
  const raw = () => rig().raw

  test('refusals', () => {
    expect(() => ask(raw(), NFNL_MSG_ACCT_GET, 0)).toThrow('ENOENT')
    expect(() => ask(raw(), NFNL_MSG_ACCT_GET_CTRZERO, 0)).toThrow('ENOENT')
    expect(() => ask(raw(), NFNL_MSG_ACCT_DEL, NLM_F_ACK)).toThrow('ENOENT')
    client().ensure(NAME)
    expect(() => ask(raw(), NFNL_MSG_ACCT_NEW, NLM_F_ACK)).toThrow('EBUSY')
    expect(() => ask(raw(), NFNL_MSG_ACCT_NEW, NLM_F_ACK | NLM_F_EXCL)).toThrow('EEXIST')
  })

  test('names are of 1 to 31 bytes', () => {
    expect(client().ensure('n'.repeat(31))).toBe(true)
    for (const name of ['', 'n'.repeat(32)]) {
      expect(() => client().ensure(name)).toThrow('EMSGSIZE')
      expect(() => client().read(name)).toThrow('EMSGSIZE')
      expect(() => client().delete(name)).toThrow('EMSGSIZE')
    }
  })
}

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
