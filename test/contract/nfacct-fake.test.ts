import { describe, expect, test } from 'vitest'
import { systemClock } from '../../src/base/clock.ts'
import { NfacctClient } from '../../src/kernel/nfacct/client.ts'
import { FakeNfacct } from '../support/fake-nfacct/kernel.ts'
import { type NfacctTarget, nfacctSuite } from './nfacct-suite.ts'

function fake(): NfacctTarget {
  const kernel = new FakeNfacct()
  const account = (name: string) => {
    const found = kernel.accounts.get(name)
    if (found === undefined) throw new Error(name)
    return found
  }
  return {
    open: () => kernel.open(),
    use: name => void account(name).rules++,
    unuse: name => void account(name).rules--,
    async count(name) {
      Object.assign(account(name), { packets: 2n, bytes: 100n })
      return { packets: 2n, bytes: 100n }
    },
  }
}

describe('counters in memory', () => {
  nfacctSuite(fake)

  test('a kernel without them has none', async () => {
    const kernel = new FakeNfacct({ supported: false })
    const client = new NfacctClient({ transport: kernel.open(), clock: systemClock })
    expect(client.ensure('one')).toBe(false)
    expect(client.read('one')).toBeUndefined()
    expect(client.delete('one')).toBe(true)
    await client.close()
  })

  test('an answer that is lost is no absence', async () => {
    const kernel = new FakeNfacct()
    const socket = kernel.open({ faults: { onReceive: () => undefined } })
    const client = new NfacctClient({ transport: socket, clock: systemClock })
    expect(() => client.ensure('one')).toThrow('ETIMEDOUT')
    expect(() => client.read('one')).toThrow('ETIMEDOUT')
    await client.close()
  })
})
