import { expect, test } from 'vitest'
import { systemClock } from '../../../../src/base/clock.ts'
import { NfacctClient } from '../../../../src/kernel/nfacct/client.ts'
import { datagram, errorMessage, ScriptedTransport, sequenceOf } from '../../../support/scripted-transport.ts'

const EINVAL = 22

test('a kernel without counters has none', () => {
  const transport = new ScriptedTransport(sent => [datagram(errorMessage(sequenceOf(sent), EINVAL))])
  const client = new NfacctClient({ transport, clock: systemClock })
  expect(client.ensure('one')).toBe(false)
  expect(client.read('one')).toBeUndefined()
  expect(client.delete('one')).toBe(true)
})

test('an answer that is lost is no absence', () => {
  const client = new NfacctClient({ transport: new ScriptedTransport(() => []), clock: systemClock })
  expect(() => client.ensure('one')).toThrow('ETIMEDOUT')
  expect(() => client.read('one')).toThrow('ETIMEDOUT')
})
